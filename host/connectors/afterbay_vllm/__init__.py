"""The connector between vLLM and Afterbay: a vLLM plugin that does nothing unless an AFTERBAY_* variable is set.

This module decides which functions of vLLM are wrapped. It must not know what a wrapped function does (`engine`, `front_end`,
`health`, `tool_calls`).
vLLM calls `register` in each of its processes: the first one, API servers, EngineCores and workers. A wrapped module is changed
when the process loads it, so that a worker loads no module of an EngineCore.
"""
from __future__ import annotations

import functools
import inspect
import logging
import pkgutil
from typing import Any, Callable, List, Tuple

from afterbay_connector import __version__
from afterbay_connector.imports import after_import
from afterbay_connector.settings import Refused

from .settings import Settings
from .versions import refusal, vllm_version

# A function of vLLM, a parameter that the hook needs, and the hook: hook(original, *args, **kwargs).
Hook = Tuple[str, str, Callable[..., Any]]

# Loggers outside of vLLM's namespace have no handler.
logger = logging.getLogger("vllm.afterbay")

_registered = False


def register() -> None:
    """Entry point `afterbay` of the group `vllm.general_plugins`. Safe to call more than once.

    Raises SystemExit if the settings cannot be met: without the connector the stream would silently bypass Afterbay.
    """
    global _registered
    if _registered:
        return
    _registered = True
    try:
        settings = Settings.from_environment()
        if settings is None:
            return
        why = refusal(vllm_version())
        if why:
            raise Refused(f"{why}. Unset AFTERBAY_* to run without Afterbay")
        from .tool_calls import find_front_end

        find_front_end()
        for hook in _hooks(settings):
            _wrap_when_loaded(hook)
    except Refused as refused:
        raise SystemExit(f"afterbay_vllm: {refused}") from refused


def _hooks(settings: Settings) -> List[Hook]:
    from . import engine, front_end, health, ids, leases, tool_calls

    hooks: List[Hook] = [tool_calls.HOOK]
    if settings.ingress:
        hooks += engine.hooks(settings) + health.hooks(settings) + ids.hooks(settings)
    if settings.credit:
        hooks += front_end.hooks(settings)
    if settings.ids and settings.ids.lease:
        hooks += leases.HOOKS
    return hooks


def _wrap_when_loaded(hook: Hook) -> None:
    target, parameter, around = hook
    module, _, name = target.partition(":")
    after_import(module, functools.partial(_wrap, name, parameter, around))


def _wrap(name: str, parameter: str, around: Callable[..., Any], module: Any) -> None:
    from . import request_record, tool_calls

    without = {
        tool_calls.by_token: tool_calls.NOT_HOOKED,
        request_record.announce: request_record.NOT_HOOKED,
        request_record.announce_turn: request_record.TURN_NOT_HOOKED,
    }
    owner, _, function = name.rpartition(".")
    try:
        holder = pkgutil.resolve_name(f"{module.__name__}:{owner}")
        original = getattr(holder, function)
        found = parameter in inspect.signature(original).parameters
    except (AttributeError, TypeError, ValueError):
        found = False
    if not found and around in without:
        # The stream is complete without this hook, so vLLM may start.
        logger.warning("afterbay: vLLM %s: %s", vllm_version(), without[around])
        return
    if not found:
        raise SystemExit(
            f"afterbay_vllm: vLLM {vllm_version()} has no {module.__name__}.{name} with a parameter {parameter}, which this "
            f"connector ({__version__}) needs. Unset AFTERBAY_* to run without Afterbay"
        )

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    is_static = isinstance(inspect.getattr_static(holder, function), staticmethod)
    setattr(holder, function, staticmethod(wrapped) if is_static else wrapped)
