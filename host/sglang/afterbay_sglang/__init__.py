"""The connector between SGLang and Afterbay: an SGLang plugin that does nothing until AFTERBAY_* asks it to.

Owns which hooks are registered in which process. Must not know how a socket is re-routed (`ingress`), what the
rendezvous file says (`rendezvous`) or how a page is written (`credit`). SGLang calls `register` before it makes
any socket; the scheduler's batches then go to Afterbay, and its readers count what they have finished.
"""
from __future__ import annotations

import multiprocessing
import pkgutil
import sys

from .settings import Refused, Settings

__version__ = "0.1.0"

_registered = False


def register() -> None:
    """Entry point `afterbay` of the group `sglang.srt.plugins`. Safe to call more than once.

    Raises SystemExit where what was asked for cannot be done: SGLang logs an ordinary exception of a plugin and
    goes on without it, which here would be a stream that silently bypasses Afterbay.
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
        raise SystemExit(f"afterbay-sglang: {refused}") from refused


def _register_hooks(settings: Settings) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from . import detokenizer, ingress, readers, text, workers

    wanted = []
    if settings.text_ingress or settings.credit:
        wanted += detokenizer.hooks()
    if settings.ingress:
        wanted += ingress.hooks(settings)
    if settings.text_ingress:
        wanted += text.hooks(settings)
    if settings.credit:
        wanted += readers.hooks(settings)
        workers.load_in_http_workers(settings)
    for target, kind, hook in wanted:
        if _concerns_this_process(target):
            _must_exist(target)
            HookRegistry.register(target, hook, HookType[kind])


def _concerns_this_process(target: str) -> bool:
    """Whether the hooked module is at home here.

    Applying a hook imports its module. A child that SGLang spawned has its own module loaded by the time plugins
    are, so anything else would only cost it seconds and memory (the scheduler's modules in a detokenizer). The
    first process loads plugins before its modules, and imports all of them anyway.
    """
    module = ".".join(target.split(".")[:4])  # sglang.srt.managers.NAME
    return module in sys.modules or multiprocessing.parent_process() is None


def _must_exist(target: str) -> None:
    """SGLang only logs a hook that it cannot apply, so look first."""
    try:
        pkgutil.resolve_name(target)
    except Exception as error:
        from .rendezvous import sglang_version

        raise Refused(
            f"SGLang {sglang_version() or '(version unknown)'} has no usable {target} ({error!r}), which this connector "
            f"({__version__}) hooks; it knows SGLang 0.5.11 to 0.5.23. Unset AFTERBAY_* to run without Afterbay"
        ) from error
