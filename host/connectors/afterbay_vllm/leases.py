"""Lets the EngineCore go on with a request with a lease after the request's client has left.

vLLM's API server aborts a request for two reasons: its client left, or its text has a stop string. Only the API server knows which, so it
marks the ids of clients that left. The EngineCore tells Afterbay of these, and ends nothing. Afterbay aborts the request when the lease
is over. This module must not know how long a lease is.
"""
from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Callable, List

from afterbay_connector import request_record
from afterbay_connector.request_id import lease_of

from .request_record import Message

# Before the id of a request whose client has left. No id of a request begins like it.
LEFT = "\0afterbay-left\0"
# The attribute of the scheduler's request whose client has left.
_HAS_LEFT = "_afterbay_has_left"

_is_leaving: ContextVar[bool] = ContextVar("afterbay_is_leaving", default=False)


async def leave(original: Callable[..., Any], front_end: Any, *args: Any, **kwargs: Any) -> Any:
    """vLLM aborts by its own ids if a client has left, and by the client's ids if somebody asks."""
    token = _is_leaving.set(bool(kwargs.get("internal")))
    try:
        return await original(front_end, *args, **kwargs)
    finally:
        _is_leaving.reset(token)


def mark(original: Callable[..., Any], client: Any, request_type: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Mark the ids of an abort that is sent to an EngineCore."""
    if _is_leaving.get() and request_type.name == "ABORT":
        request = [rid if lease_of(rid) is None else LEFT + rid for rid in request]
    return original(client, request_type, request, *args, **kwargs)


def keep(original: Callable[..., Any], engine: Any, request_ids: List[str]) -> Any:
    """Abort only requests whose client has not left. Each marked id comes twice, by both queues of an EngineCore."""
    aborted = []
    for rid in request_ids:
        if rid.startswith(LEFT):
            _tell(engine, rid[len(LEFT) :])
        else:
            aborted.append(rid)
    return original(engine, aborted) if aborted else None


def _tell(engine: Any, rid: str) -> None:
    request = engine.scheduler.requests.get(rid)
    if request is not None and not getattr(request, _HAS_LEFT, False):
        setattr(request, _HAS_LEFT, True)
        engine.output_queue.put_nowait(Message(request.client_index, request_record.left(rid)))


HOOKS = [
    ("vllm.v1.engine.async_llm:AsyncLLM.abort", "request_id", leave),
    ("vllm.v1.engine.core_client:AsyncMPClient._send_input", "request_type", mark),
    ("vllm.v1.engine.core:EngineCore.abort_requests", "request_ids", keep),
]
