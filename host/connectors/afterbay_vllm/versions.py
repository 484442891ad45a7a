"""vLLM's versions, and what differs between them for Afterbay. This module imports no module of vLLM."""
from __future__ import annotations

import importlib.metadata
import re
import sys
from typing import Optional, Tuple

from afterbay_connector import __version__

# The versions that this connector was tried with.
VLLM_MIN, VLLM_MAX = (0, 26), (0, 33)
# The first version that reads nothing past a stop string in a row of several tokens.
JOINS_MIN = (0, 32)


def vllm_version() -> Optional[str]:
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return getattr(sys.modules.get("vllm"), "__version__", None)


def refusal(version: Optional[str]) -> Optional[str]:
    """Return the reason why the connector does not run in this vLLM, or None. A newer one runs if its functions and classes fit."""
    if version is None:
        return "vLLM is not installed for this Python"
    if _numbers(version) and _numbers(version) < VLLM_MIN:
        return f"vLLM {version} is older than vLLM {_text(VLLM_MIN)}, the first that this connector ({__version__}) supports"
    return None


def is_untried(version: Optional[str]) -> bool:
    return not _numbers(version or "") or _numbers(version or "") > VLLM_MAX


def untried(version: Optional[str], found: str) -> str:
    """Return the warning about a version that this connector does not know, with what was checked and found."""
    return (
        f"afterbay: vLLM {version} is newer than this connector ({__version__}), which was tried with vLLM {_text(VLLM_MIN)} to {_text(VLLM_MAX)}. "
        f"Its functions have the parameters that the hooks need, and its classes the fields that Afterbay reads: {found}"
    )


def joins_none(version: Optional[str]) -> Optional[str]:
    """Return the reason why no row may be joined for this vLLM's API server, or None.

    Only rows of requests with stop strings must not be joined before `JOINS_MIN`, but an output does not say which request has one.
    """
    if version and (_numbers(version) or VLLM_MAX) >= JOINS_MIN:
        return None
    return f"vLLM {version} takes tokens behind a stop string from a row of several tokens, vLLM {_text(JOINS_MIN)} and later do not"


def _numbers(version: str) -> Tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _text(version: Tuple[int, ...]) -> str:
    return ".".join(map(str, version))
