"""vLLM's versions, and what differs between them for Afterbay. This module imports no module of vLLM."""
from __future__ import annotations

import importlib.metadata
import re
import sys
from typing import Optional, Tuple

from afterbay_connector import __version__

# The versions whose sockets and functions this connector knows.
VLLM_MIN, VLLM_MAX = (0, 26), (0, 33)
# The first version that reads nothing past a stop string in a row of several tokens.
JOINS_MIN = (0, 32)


def vllm_version() -> Optional[str]:
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return getattr(sys.modules.get("vllm"), "__version__", None)


def unknown_version(version: Optional[str]) -> Optional[str]:
    """Return the reason why the connector does not run in this vLLM, or None."""
    if version is None:
        return "vLLM is not installed for this Python"
    if VLLM_MIN <= _numbers(version) <= VLLM_MAX:
        return None
    return f"vLLM {version} is not known to this connector ({__version__}), which supports vLLM {_text(VLLM_MIN)} to {_text(VLLM_MAX)}"


def joins_none(version: Optional[str]) -> Optional[str]:
    """Return the reason why no row may be joined for this vLLM's API server, or None.

    Only rows of requests with stop strings must not be joined before `JOINS_MIN`, but an output does not say which request has one.
    """
    if version and _numbers(version) >= JOINS_MIN:
        return None
    return f"vLLM {version} takes tokens behind a stop string from a row of several tokens, vLLM {_text(JOINS_MIN)} and later do not"


def _numbers(version: str) -> Tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _text(version: Tuple[int, ...]) -> str:
    return ".".join(map(str, version))
