"""The encodings of the installed SGLang: pickle or msgpack, and the classes of its messages.

This module only reads SGLang's message classes. It must not know sockets or settings.
"""
from __future__ import annotations

from typing import Any, Dict, List, Optional

BATCH_OUTPUTS = ("BatchTokenIDOutput", "BatchStrOutput", "BatchEmbeddingOutput")


def ipc_format() -> str:
    """Return the encoding of this process. SGLang reads its switch once, when io_struct is imported (since 0.5.15; pickle before)."""
    from sglang.srt.managers import io_struct

    return "pickle" if getattr(io_struct, "_USE_PICKLE_IPC", True) else "msgpack"


def classes() -> Dict[str, Any]:
    """Return the classes of messages with rows."""
    from sglang.srt.managers import io_struct

    return {name: getattr(io_struct, name, None) for name in BATCH_OUTPUTS}


def _config(kind: Any) -> Any:
    return getattr(kind, "__struct_config__", None) if isinstance(kind, type) else None


def wire_fields(kind: Any, tag: str) -> Optional[List[str]]:
    """Return the fields of a msgspec struct that is encoded as [tag, field, …]. None for anything else, which has no positions."""
    config = _config(kind)
    if config is None or not config.array_like or config.tag != tag:
        return None
    return list(kind.__struct_encode_fields__)
