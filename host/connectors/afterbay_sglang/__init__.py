"""The connector between SGLang and Afterbay: an SGLang plugin that does nothing unless an AFTERBAY_* variable is set.

This module decides which hooks are registered in which process. It must not know how a socket is re-routed (`ingress`),
the content of the rendezvous file (`rendezvous`) or the bytes of a page (`afterbay_connector.credit`). SGLang calls `register` before it
makes any socket. The scheduler's batches then go to Afterbay, and SGLang's readers count the frames they have finished.
"""
from __future__ import annotations

import inspect
import logging
import multiprocessing
import pkgutil
import sys
from types import MappingProxyType
from typing import Any, List, Mapping, Optional, Tuple

from afterbay_connector import __version__
from afterbay_connector.settings import Refused

from .settings import Settings

logger = logging.getLogger("afterbay.sglang")

_registered = False


def register() -> None:
    """Entry point `afterbay` of the group `sglang.srt.plugins`. Safe to call more than once.

    Raises SystemExit if the settings cannot be met. SGLang only logs other exceptions of a plugin and continues
    without it, so that the stream would silently bypass Afterbay.
    """
    global _registered
    if _registered:
        return
    _registered = True
    try:
        settings = Settings.from_environment()
        if settings is None:
            return
        _register_hooks(settings)
    except Refused as refused:
        raise SystemExit(f"afterbay_sglang: {refused}") from refused


def _register_hooks(settings: Settings) -> None:
    from . import abort, detokenizer, errors, ids, ingress, leases, readers, rust_server, text, tool_calls, workers

    tool_calls.find_front_end()
    wanted = abort.hooks(settings)
    if settings.rust_server:
        _apply(wanted + rust_server.hooks(settings), parameters=rust_server.PARAMETERS)
        return _apply_request_record()
    if settings.text_ingress or settings.credit:
        wanted += detokenizer.hooks()
    if settings.ingress:
        wanted += ingress.hooks(settings) + ids.hooks(settings) + leases.hooks(settings)
    if settings.text_ingress:
        wanted += text.hooks(settings)
    if settings.credit:
        wanted += readers.hooks(settings)
    workers.load_in_http_workers()
    _apply(wanted)
    if settings.ingress:
        _apply_request_record()
    # Whatever joins rows: these hooks do not depend on the settings.
    _apply(errors.hooks(), without=errors.NOT_HOOKED)
    _apply(tool_calls.hooks(), without="tool calls may arrive broken in chunks of several tokens")


def _apply_request_record() -> None:
    from . import request_record

    _apply(request_record.hooks(), without=request_record.NOT_HOOKED)
    _apply(request_record.turn_hooks(), without=request_record.TURN_NOT_HOOKED)


def _apply(wanted: List[Tuple[str, str, Any]], without: Optional[str] = None, parameters: Mapping[str, int] = MappingProxyType({})) -> None:
    """Register hooks. `without` says what is missing without them; by default SGLang does not start without them."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, kind, hook in wanted:
        if _concerns_this_process(target) and _exists(target, without, parameters.get(target)):
            HookRegistry.register(target, hook, HookType[kind])


def _concerns_this_process(target: str) -> bool:
    """Return whether this process uses the hooked module.

    Applying a hook imports its module. A process that SGLang spawned has loaded its own module before its plugins;
    other modules would only cost it seconds and memory (the scheduler's modules in a detokenizer). The first process
    loads plugins before its modules, and imports all of them anyway.
    """
    module = target.rsplit(".", 2)[0]  # MODULE.CLASS.METHOD
    return module in sys.modules or multiprocessing.parent_process() is None


def _exists(target: str, without: Optional[str], parameters: Optional[int]) -> bool:
    """Refuse to start if a required function is missing or has another number of parameters, and warn of another.

    SGLang would only log a hook that it cannot apply.
    """
    try:
        found = pkgutil.resolve_name(target)
        count = len(inspect.signature(found).parameters)
        if parameters is not None and count != parameters:
            raise TypeError(f"it has {count} parameters, not {parameters}")
    except Exception as error:
        from .rendezvous import sglang_version

        missing = f"SGLang {sglang_version() or '(version unknown)'} has no usable {target} ({error!r})"
        if without is None:
            raise Refused(
                f"{missing}, which this connector ({__version__}) needs; it was tried with SGLang 0.5.11 to 0.5.23. Unset AFTERBAY_* to run without Afterbay"
            ) from error
        logger.warning("afterbay: %s: %s", missing, without)
        return False
    return True
