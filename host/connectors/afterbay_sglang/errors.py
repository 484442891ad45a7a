"""Lets clients of a stream see an error that ends their request.

This module runs in the tokenizer's process. SGLang's servers of OpenAI's API send an error if the status of an abort is an `HTTPStatus`. It
is one in a pickle of the scheduler's own; in msgpack, and in a row of Afterbay's, it is an int, and the client would get a usual last chunk.
"""
from __future__ import annotations

from http import HTTPStatus
from typing import Any, Callable, Dict, List, Tuple

_ABORTED = "sglang.srt.managers.tokenizer_manager.TokenizerManager._handle_abort_finish_reason"
NOT_HOOKED = "a stream that ends with an error ends with the finish reason \"abort\" instead"


def hooks() -> List[Tuple[str, str, Any]]:
    return [(_ABORTED, "AROUND", with_status)]


def with_status(original: Callable[..., Any], manager: Any, out: Dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    reason = out["meta_info"]["finish_reason"]
    try:
        reason["status_code"] = HTTPStatus(reason["status_code"])
    except (KeyError, TypeError, ValueError):
        pass  # no status, or none that Python knows
    return original(manager, out, *args, **kwargs)
