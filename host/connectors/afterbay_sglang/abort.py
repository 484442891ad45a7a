"""Lets the scheduler receive aborts from Afterbay, in addition to the requests of its tokenizer.

This module connects the scheduler's input socket to Afterbay too, describes the AbortReq of the installed version for the
rendezvous file, and makes an abort from Afterbay end exactly one request. It must not know when a request should end.
"""
from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from . import leases
from .settings import Settings, fill
from .wire import wire_fields

logger = logging.getLogger("afterbay.sglang")

# The rid of Afterbay's aborts, which begins no request's rid. `http_worker_ipc` has the rid to end: no client can set it, and
# tokenizers put the name of their socket there. `host/path/wire/src/abort.rs` writes both.
EXACT = "\0afterbay"
_ABORT = "sglang.srt.managers.scheduler.Scheduler.abort_request"
# The result of `connect` without AFTERBAY_ABORT.
NO_ABORTS = (None, "AFTERBAY_ABORT is not set")


def of_scheduler(settings: Settings, scheduler: Any, dp_rank: int, dp_size: int) -> Tuple[Optional[str], Optional[str]]:
    """Connect SGLang's own input socket to Afterbay. Return the endpoint, or None and the reason.

    Call it only for a rank that sends output, because the same rank receives requests.
    """
    import zmq

    why = "this connector does not know the AbortReq of this SGLang" if settings.abort and request() is None else None
    return connect(settings, input_socket(scheduler), zmq.PULL, dp_rank, dp_size, why)


def connect(settings: Settings, socket: Any, kind: int, dp_rank: int, dp_size: int, why: Optional[str] = None) -> Tuple[Optional[str], Optional[str]]:
    """Connect a socket of this kind to Afterbay, unless there is a reason not to. Return the endpoint, or None and the reason."""
    if not settings.abort:
        return NO_ABORTS
    if dp_size > 1 and "{dp_rank}" not in settings.abort:
        why = f"{dp_size} DP ranks share AFTERBAY_ABORT, and an abort could reach any of them: put {{dp_rank}} into it to give each rank its own"
    elif not _is(kind, socket):
        why = "this SGLang's scheduler has no socket for requests (recv_from_tokenizer) of the right kind"
    if why:
        logger.warning("afterbay: the scheduler receives no aborts: %s", why)
        return None, why
    import zmq

    endpoint = fill(settings.abort, dp_rank, "AFTERBAY_ABORT")
    if endpoint.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)
    socket.connect(endpoint)
    logger.info("afterbay: the scheduler takes aborts from %s", endpoint)
    return endpoint, None


def hooks(settings: Settings) -> List[Tuple[str, str, Any]]:
    """Hook every rank's scheduler: the rank that receives an abort hands it to the others of its group."""
    return [(_ABORT, "AROUND", end_exactly)] if settings.abort else []


def end_exactly(original: Callable[..., Any], scheduler: Any, abort: Any) -> Any:
    """End the request that an abort from Afterbay names. SGLang ends every request whose rid begins with the rid of an abort."""
    if leases.is_of_client_that_left(abort):
        return leases.tell(scheduler, abort)
    rid = getattr(abort, "http_worker_ipc", None)
    if abort.rid != EXACT or not rid:
        return original(scheduler, abort)
    from sglang.srt.managers.schedule_batch import Req

    # Requests that wait for their images have a class of their own.
    waiting = getattr(getattr(scheduler, "mm_receiver", None), "waiting_list", ())
    abort.rid, abort.http_worker_ipc = rid, None
    with _only(rid, {Req, *map(type, waiting)}) as found:
        result = original(scheduler, abort)
    logger.info("afterbay: request %r %s", rid, "is ended" if found else "is not here, so nothing is ended")
    return result


class _Other(str):
    """A rid that begins with nothing."""

    def startswith(self, *_: Any) -> bool:
        return False


@contextlib.contextmanager
def _only(rid: str, kinds: Set[type]) -> Iterator[List[str]]:
    """Let only `rid` itself begin with `rid` among the rids that this thread reads of these kinds of requests. Yield a list that has
    `rid` once it was read."""
    thread, found = threading.get_ident(), []

    def rid_of(request: Any) -> Any:
        own = request.__dict__["rid"]
        if own == rid:
            found.append(own)
            return own
        return _Other(own) if isinstance(own, str) and threading.get_ident() == thread else own

    def set_rid(request: Any, value: Any) -> None:
        request.__dict__["rid"] = value

    # A property goes before the requests' own attributes.
    for kind in kinds:
        kind.rid = property(rid_of, set_rid)
    try:
        yield found
    finally:
        for kind in kinds:
            del kind.rid


def input_socket(scheduler: Any) -> Any:
    """Return the socket of the scheduler's requests: in `ipc_channels` from SGLang 0.5.13 on, on the scheduler itself before."""
    return getattr(getattr(scheduler, "ipc_channels", scheduler), "recv_from_tokenizer", None)


def _is(kind: int, socket: Any) -> bool:
    """Not so of what SGLang's own test runtime puts in the socket's place."""
    import zmq

    try:
        return socket.getsockopt(zmq.TYPE) == kind
    except (AttributeError, zmq.ZMQError):
        return False


def request() -> Optional[Dict[str, Any]]:
    """Describe the AbortReq of this version. None if it differs from all versions up to 0.5.23, in which a rid and
    `http_worker_ipc` are enough."""
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
    if not fields or not {"rid", "http_worker_ipc"} <= set(fields) or made.rid != "r" or getattr(made, "abort_all", False):
        return None
    return {"module": kind.__module__, "class": kind.__name__, "fields": fields, "struct": is_struct}
