"""Lets the scheduler take aborts from Afterbay, beside the requests of its tokenizer.

Owns the one more `connect` of the socket that the scheduler reads requests from, and what an AbortReq is in the installed
version. Must not know when a request should end: that comes over the socket. What is said of it goes into the rendezvous
file next.
"""
from __future__ import annotations

import dataclasses
import logging
from typing import Any, Dict, Optional, Tuple

from . import rendezvous
from .settings import Settings, fill

logger = logging.getLogger("afterbay.sglang")


def connect(settings: Settings, scheduler: Any, dp_rank: int, dp_size: int) -> Tuple[Optional[str], Optional[str]]:
    """Where the scheduler takes aborts now, or why it takes none. Only for a rank that sends: it is the one that receives."""
    if not settings.abort:
        return rendezvous.NO_ABORTS
    why = None
    if dp_size > 1 and "{dp_rank}" not in settings.abort:
        why = f"{dp_size} DP ranks share AFTERBAY_ABORT, and an abort would go to any of them: with {{dp_rank}} in it each has its own"
    elif not _is_pull(_input(scheduler)):
        why = "this SGLang's scheduler has no PULL that it receives requests on (recv_from_tokenizer)"
    elif request() is None:
        why = "this SGLang's AbortReq is not one that this connector knows"
    if why:
        logger.warning("afterbay: the scheduler takes no aborts: %s", why)
        return None, why
    import zmq

    endpoint = fill(settings.abort, dp_rank, "AFTERBAY_ABORT")
    socket = _input(scheduler)
    if endpoint.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)
    socket.connect(endpoint)
    logger.info("afterbay: the scheduler takes aborts from %s", endpoint)
    return endpoint, None


def _input(scheduler: Any) -> Any:
    """In `ipc_channels` from SGLang 0.5.13 on, on the scheduler itself before."""
    return getattr(getattr(scheduler, "ipc_channels", scheduler), "recv_from_tokenizer", None)


def _is_pull(socket: Any) -> bool:
    """Not so of what SGLang's own test runtime and its Rust server put in the socket's place."""
    import zmq

    try:
        return socket.getsockopt(zmq.TYPE) == zmq.PULL
    except (AttributeError, zmq.ZMQError):
        return False


def request() -> Optional[Dict[str, Any]]:
    """What an AbortReq is here. None where it is not as in every version up to 0.5.23: a rid is enough to make one."""
    from sglang.srt.managers import io_struct

    kind = getattr(io_struct, "AbortReq", None)
    if not isinstance(kind, type):
        return None
    is_struct = not dataclasses.is_dataclass(kind)
    fields = rendezvous.wire_fields(kind, "AbortReq") if is_struct else [field.name for field in dataclasses.fields(kind)]
    try:
        made = kind(rid="r")
    except Exception:  # a version with another field that must be given
        return None
    if not fields or "rid" not in fields or made.rid != "r" or getattr(made, "abort_all", False):
        return None
    return {"module": kind.__module__, "class": kind.__name__, "fields": fields, "struct": is_struct}
