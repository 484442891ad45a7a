"""Lets the scheduler receive aborts from Afterbay, in addition to the requests of its tokenizer.

This module connects the scheduler's input socket to Afterbay too, and describes the AbortReq of the installed version for
the rendezvous file. It must not know when a request should end.
"""
from __future__ import annotations

import dataclasses
import logging
from typing import Any, Dict, Optional, Tuple

from .settings import Settings, fill
from .wire import wire_fields

logger = logging.getLogger("afterbay.sglang")

# The result of `connect` without AFTERBAY_ABORT.
NO_ABORTS = (None, "AFTERBAY_ABORT is not set")


def connect(settings: Settings, scheduler: Any, dp_rank: int, dp_size: int) -> Tuple[Optional[str], Optional[str]]:
    """Connect the scheduler's input socket to Afterbay. Return the endpoint, or None and the reason.

    Call it only for a rank that sends output, because the same rank receives requests.
    """
    if not settings.abort:
        return NO_ABORTS
    why = None
    if dp_size > 1 and "{dp_rank}" not in settings.abort:
        why = f"{dp_size} DP ranks share AFTERBAY_ABORT, and an abort could reach any of them: put {{dp_rank}} into it to give each rank its own"
    elif not _is_pull(input_socket(scheduler)):
        why = "this SGLang's scheduler has no PULL socket for requests (recv_from_tokenizer)"
    elif request() is None:
        why = "this connector does not know the AbortReq of this SGLang"
    if why:
        logger.warning("afterbay: the scheduler receives no aborts: %s", why)
        return None, why
    import zmq

    endpoint = fill(settings.abort, dp_rank, "AFTERBAY_ABORT")
    socket = input_socket(scheduler)
    if endpoint.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)
    socket.connect(endpoint)
    logger.info("afterbay: the scheduler takes aborts from %s", endpoint)
    return endpoint, None


def input_socket(scheduler: Any) -> Any:
    """Return the socket of the scheduler's requests: in `ipc_channels` from SGLang 0.5.13 on, on the scheduler itself before."""
    return getattr(getattr(scheduler, "ipc_channels", scheduler), "recv_from_tokenizer", None)


def _is_pull(socket: Any) -> bool:
    """Not so of what SGLang's own test runtime puts in the socket's place."""
    import zmq

    try:
        return socket.getsockopt(zmq.TYPE) == zmq.PULL
    except (AttributeError, zmq.ZMQError):
        return False


def request() -> Optional[Dict[str, Any]]:
    """Describe the AbortReq of this version. None if it differs from all versions up to 0.5.23, in which a rid is enough."""
    from sglang.srt.managers import io_struct

    kind = getattr(io_struct, "AbortReq", None)
    if not isinstance(kind, type):
        return None
    is_struct = not dataclasses.is_dataclass(kind)
    fields = wire_fields(kind, "AbortReq") if is_struct else [field.name for field in dataclasses.fields(kind)]
    try:
        made = kind(rid="r")
    except Exception:  # a version with another required field
        return None
    if not fields or "rid" not in fields or made.rid != "r" or getattr(made, "abort_all", False):
        return None
    return {"module": kind.__module__, "class": kind.__name__, "fields": fields, "struct": is_struct}
