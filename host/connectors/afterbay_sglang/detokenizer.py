"""Makes SGLang's detokenizer process load plugins in the versions in which it loads none by itself (0.5.11 to 0.5.21).

SGLang starts the process with a function that its caller may choose. This module chooses one that loads plugins first. It must
not know which hooks the plugins register there (`readers`, `text`).
"""
from __future__ import annotations

import functools
import importlib.util
import inspect
from typing import Any, Callable, List, Tuple

_LAUNCH = "sglang.srt.entrypoints.engine.Engine._launch_subprocesses"
# The parameter of `_LAUNCH` and attribute of `Engine` that names the function of a detokenizer process.
_FUNCTION = "run_detokenizer_process_func"
# The reason why a detokenizer has no page and its output stays direct, if its process cannot load plugins.
NONE = (
    f"this SGLang's detokenizer process loads no plugins, and Engine has no {_FUNCTION} to change that; with "
    "--skip-tokenizer-init the tokenizer reads the output, and it counts frames"
)


def loads_plugins() -> bool:
    """Return whether the detokenizer's process loads plugins, by itself or through this module. Equal in every process."""
    return _loads_by_itself() or _can_be_chosen()


def hooks() -> List[Tuple[str, str, Any]]:
    return [] if _loads_by_itself() or not _can_be_chosen() else [(_LAUNCH, "AROUND", launch)]


def launch(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Start SGLang's processes so that the detokenizer's process runs `run`, which ends in the chosen function."""
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.arguments[_FUNCTION] = functools.partial(run, bound.arguments[_FUNCTION])
    return original(*bound.args, **bound.kwargs)


def run(chosen: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Load plugins in the new process. The module must be loaded first, because only loaded modules are hooked there."""
    import sglang.srt.managers.detokenizer_manager  # noqa: F401
    from sglang.srt.plugins import load_plugins

    load_plugins()
    return chosen(*args, **kwargs)


def _loads_by_itself() -> bool:
    return _source_has("sglang.srt.managers.detokenizer_manager", b"load_plugins()")


def _can_be_chosen() -> bool:
    return _source_has("sglang.srt.entrypoints.engine", b"self._launch_subprocesses(", f"{_FUNCTION}=self.{_FUNCTION}".encode())


def _source_has(module: str, *words: bytes) -> bool:
    """Search a module's source without importing it, because the scheduler does not use these modules."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    if spec is None or not spec.origin:
        return False
    with open(spec.origin, "rb") as source:
        text = source.read()
    return all(word in text for word in words)
