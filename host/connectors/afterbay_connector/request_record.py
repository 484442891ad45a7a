"""The record of a request: one message before the request's first row, with what the engine knows of the request and its rows do not say.

It travels on the scheduler's own connection, like the introduction, so that it is never late. Afterbay journals it and forwards it to
nobody. This module must not know any engine. The form is documented in docs/src/engines/introduction.md.
"""
from __future__ import annotations

import functools
import logging
from array import array
from typing import Any, Dict, List, Optional, Sequence, Tuple

# SGLang and vLLM bring both packages, which need a tenth of the time of Python's own.
try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]
try:
    from msgspec.json import encode as _json
except ImportError:
    import json

    def _json(value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


# Afterbay takes no longer rid, header and prompt.
RID_BYTES_MAX = 4096
HEADER_BYTES_MAX = 64 << 10
PROMPT_IDS_MAX = 262_144
# These fields cannot be left out.
_KEPT = ("afterbay", "rid", "arrived_unix_ns", "prompt_tokens")
# Arrays of more ids are narrowed by numpy, which then costs less than its call.
_ARRAY_IDS_MIN = 256


def encode(rid: Any, prompt_ids: Optional[Sequence[int]], prompt_tokens: Optional[int] = None, **fields: Any) -> Optional[bytes]:
    """Return the message: one line of JSON, a line feed, and the ids as u32, little endian. `fields` without a value are None.

    `prompt_tokens` is needed only for a prompt without ids. Fields over a bound are left out, and named. None for a rid whose rows
    Afterbay does not read.
    """
    if not isinstance(rid, str) or not 0 < len(rid.encode(errors="replace")) <= RID_BYTES_MAX:
        return None
    left_out: List[str] = []
    ids: Optional[bytes] = b""
    if prompt_ids is not None:
        prompt_tokens = len(prompt_ids)
        ids = _packed(prompt_ids) if prompt_tokens <= PROMPT_IDS_MAX else None
        if ids is None:
            left_out, ids = ["prompt_ids"], b""
    header: Dict[str, Any] = {"afterbay": "request", "rid": rid}
    if prompt_tokens is not None:
        header["prompt_tokens"] = prompt_tokens
    for name, value in fields.items():
        if value is not None:
            header[name] = value
    if left_out:
        header["left_out"] = left_out
    line = _bounded(header)
    return b"%b\n%b" % (line, ids) if line else None


def end(rid: str) -> bytes:
    """Return the message that a request with a record has ended and has no further row."""
    return _json({"afterbay": "end", "rid": rid})


def left(rid: str) -> bytes:
    """Return the message that the client of a request with a lease has left, and that the engine goes on with the request."""
    return _json({"afterbay": "left", "rid": rid})


def given(source: Any, fields: Sequence[Tuple[str, str, Tuple[Any, ...]]]) -> Dict[str, Any]:
    """Return the attributes of `source` with other values than the defaults. `fields` are (NAME, ATTRIBUTE, DEFAULTS)."""
    found = {}
    for name, attribute, defaults in fields:
        value = getattr(source, attribute, None)
        if value is not None and value not in defaults:
            found[name] = value
    return found


def grammar(kind: str, value: Any, enforced: bool) -> Dict[str, Any]:
    text = value if isinstance(value, str) else _json(value).decode()
    return {"kind": kind, "value": text, "enforced": enforced}


def texts(value: Any) -> Optional[List[str]]:
    """Return one text or several as a list, or None if there is none."""
    return ([value] if isinstance(value, str) else list(value)) if value else None


def input_bytes(value: Any) -> int:
    """Return the size of a multimodal input: a tensor, or tensors in lists and maps. 0 if it is not in this process."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return sum(map(input_bytes, value))
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0


@functools.lru_cache(maxsize=16)
def warn(logger: logging.Logger, error: str) -> None:
    """Log that a request has no record. An error that comes again is not logged again."""
    logger.warning("afterbay: requests have no record, and Afterbay begins them with their first rows: %s", error)


def _packed(ids: Sequence[int]) -> Optional[bytes]:
    """Return the ids as u32, little endian. None if there is one that is no u32."""
    if numpy and isinstance(ids, array) and ids.typecode == "q" and len(ids) > _ARRAY_IDS_MIN:
        wide = numpy.frombuffer(ids, "<u8")
        return wide.astype("<u4").tobytes() if int(wide.max()) >> 32 == 0 else None
    try:
        return array("I", ids).tobytes()
    except (OverflowError, TypeError):
        return None


def _bounded(header: Dict[str, Any]) -> Optional[bytes]:
    """Return the header as JSON within its bound: without fields that are not JSON, and without the longest ones."""
    line = _json_or_none(header)
    if line is not None and len(line) <= HEADER_BYTES_MAX:
        return line
    lines = {name: _json_or_none(value) for name, value in header.items() if name not in _KEPT and name != "left_out"}
    # Fields that are not JSON go first.
    for name in sorted(lines, key=lambda name: HEADER_BYTES_MAX if lines[name] is None else len(lines[name]), reverse=True):
        header = {**header, "left_out": [*header.get("left_out", []), name]}
        del header[name]
        line = _json_or_none(header)
        if line is not None and len(line) <= HEADER_BYTES_MAX:
            return line
    return None


def _json_or_none(value: Any) -> Optional[bytes]:
    try:
        return _json(value)
    except (TypeError, ValueError, OverflowError):
        return None
