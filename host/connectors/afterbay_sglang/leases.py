"""Lets the scheduler go on with a request with a lease after the request's client has left.

The tokenizer marks the abort of such a request. The scheduler tells Afterbay of a marked abort, and ends nothing. Afterbay aborts the
request when the lease is over. This module must not know how long a lease is.
"""
from __future__ import annotations

from typing import Any, Callable, List, Tuple

from afterbay_connector import request_record
from afterbay_connector.request_id import lease_of

from .settings import Settings

_ABORT = "sglang.srt.managers.tokenizer_manager.TokenizerManager.abort_request"
# Before the rid in the abort of a client that has left. It begins no request's rid, so a scheduler without this connector ends none.
LEFT = "\0afterbay-left\0"
# The attribute of the tokenizer's state of a request whose client has left.
_HAS_LEFT = "_afterbay_has_left"


def hooks(settings: Settings) -> List[Tuple[str, str, Any]]:
    return [(_ABORT, "AROUND", leave)] if settings.ids and settings.ids.lease else []


class Newest(list):  # type: ignore[type-arg]
    """The outputs that wait for a client that has left. Nobody takes them, and each may have all tokens so far."""

    def append(self, output: Any) -> None:
        self[:] = [output]


def leave(original: Callable[..., Any], tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
    """SGLang gives the rid of a client that has left by position, and that of an abort that somebody asks for by name."""
    rid = args[0] if args else None
    state = None if lease_of(rid) is None else tokenizer.rid_to_state.get(rid)
    if state is None:
        return original(tokenizer, *args, **kwargs)
    if not getattr(state, _HAS_LEFT, False):
        setattr(state, _HAS_LEFT, True)
        state.out_list = Newest()
        _send(tokenizer, rid)


def _send(tokenizer: Any, rid: str) -> None:
    from sglang.srt.managers.io_struct import AbortReq

    # The socket itself in older versions.
    send = getattr(tokenizer, "_dispatch_to_scheduler", None) or tokenizer.send_to_scheduler.send_pyobj
    send(AbortReq(rid=LEFT + rid))


def is_of_client_that_left(abort: Any) -> bool:
    return isinstance(abort.rid, str) and abort.rid.startswith(LEFT)


def tell(scheduler: Any, abort: Any) -> None:
    from .ingress import output_sender

    socket = output_sender(scheduler).socket
    if socket is not None:
        socket.send(request_record.left(abort.rid[len(LEFT) :]))
