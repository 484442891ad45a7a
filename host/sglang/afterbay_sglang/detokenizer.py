"""Makes SGLang's detokenizer process load plugins, in the versions where that process loads none by itself (0.5.11 to 0.5.21).

Owns how that is done: SGLang starts the process with a function that its caller may choose, and ours loads plugins first. Must not
know which hooks the plugins register there (`readers`, `text`).
"""
from __future__ import annotations

import functools
import importlib.util
import inspect
from typing import Any, Callable, List, Tuple

_LAUNCH = "sglang.srt.entrypoints.engine.Engine._launch_subprocesses"
# The parameter of `_LAUNCH`, and an attribute of `Engine`: the function that a detokenizer process runs.
_FUNCTION = "run_detokenizer_process_func"
# Why a detokenizer has no page and its output stays direct, where nothing makes its process load plugins.
NONE = (
    f"this SGLang's detokenizer process loads no plugins, and Engine has no {_FUNCTION} that could make it; with "
    "--skip-tokenizer-init the tokenizer reads, and it counts"
)


def loads_plugins() -> bool:
    """Whether the process loads plugins, by itself or because of us. Every process answers alike."""
    return _loads_by_itself() or _can_be_told()


def hooks() -> List[Tuple[str, str, Any]]:
    return [] if _loads_by_itself() or not _can_be_told() else [(_LAUNCH, "AROUND", launch)]


def launch(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around the start of SGLang's processes: the detokenizer's runs our function, which ends in the chosen one."""
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.arguments[_FUNCTION] = functools.partial(run, bound.arguments[_FUNCTION])
    return original(*bound.args, **bound.kwargs)


def run(chosen: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In the new process. The modules first: only what a spawned process has loaded is hooked there."""
    import sglang.srt.managers.detokenizer_manager  # noqa: F401
    from sglang.srt.plugins import load_plugins

    load_plugins()
    return chosen(*args, **kwargs)


def _loads_by_itself() -> bool:
    return _source_has("sglang.srt.managers.detokenizer_manager", b"load_plugins()")


def _can_be_told() -> bool:
    return _source_has("sglang.srt.entrypoints.engine", b"self._launch_subprocesses(", f"{_FUNCTION}=self.{_FUNCTION}".encode())


def _source_has(module: str, *words: bytes) -> bool:
    """Read, not imported: the scheduler has no use for these modules."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    if spec is None or not spec.origin:
        return False
    with open(spec.origin, "rb") as source:
        text = source.read()
    return all(word in text for word in words)
