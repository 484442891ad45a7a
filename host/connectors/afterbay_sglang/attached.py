"""Loads SGLang's plugins in a process that joins a running engine with its own tokenizer. Such a process loads no plugins by itself.

`Engine.attach_tokenizer_worker` makes such a tokenizer, and Dynamo's `--gateway-workers` starts a process for each. SGLang calls
`activate` during its import (entry point group `sglang.srt.platforms`), which is too early to load plugins. This module loads them when
the process asks for the class of its tokenizer; `register` then decides about hooks. `workers` puts the entry point on the path of
exactly those processes that an engine with several tokenizers starts.
"""
from __future__ import annotations

import functools
import sys
from typing import Any

from afterbay_connector.imports import after_import

_MODULE = "sglang.srt.managers.multi_tokenizer_mixin"
_FUNCTION = "get_tokenizer_worker_class"


def activate() -> None:
    """Wait for the import of the tokenizer's module. Returns None: this is no hardware platform, and SGLang continues its search for one."""
    if _MODULE not in sys.modules:
        after_import(_MODULE, _wrap)


def _wrap(module: Any) -> None:
    chosen = getattr(module, _FUNCTION, None)
    if chosen is None:
        return

    @functools.wraps(chosen)
    def with_plugins(*args: Any, **kwargs: Any) -> Any:
        from sglang.srt.plugins import load_plugins

        load_plugins()
        return chosen(*args, **kwargs)

    setattr(module, _FUNCTION, with_plugins)
