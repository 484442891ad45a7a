"""Puts Afterbay between the scheduler and SGLang's Rust server (`SGLANG_RUST_SERVER`), which runs inside the scheduler's process.

    scheduler's thread                                                     thread `afterbay-return`
    to_payload ▶ complete ▶ push_generation ─PUSH▶ Afterbay ─PUSH▶ PULL ▶ push_generation ▶ Rust server

This module decides which methods are hooked and which servers are refused. It must not know sockets (`detour`) or columns (`rows`).
"""
from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, Tuple

from ..settings import Settings

logger = logging.getLogger("afterbay.sglang")

_SERVER = "sglang.srt.rust_server.server.RustServer"
_ACCUMULATOR = "sglang.srt.managers.scheduler_components.output_streamer._GenerationStreamAccumulator"
# The attribute of a scheduler that holds its port_args, which SGLang does not keep.
_PORT_ARGS = "_afterbay_port_args"


# The parameters of the methods, which are private to SGLang and change between versions. One with others is refused.
PARAMETERS = {
    f"{_SERVER}.launch": 1,
    f"{_SERVER}.push_generation": 3,
    f"{_SERVER}.push_abort": 3,
    f"{_SERVER}.push_health_ack": 1,
}


def hooks(settings: Settings) -> List[Tuple[str, str, Any]]:
    from ..ingress import SCHEDULER_SOCKETS

    def after_init_ipc_channels(_result: Any, scheduler: Any, port_args: Any) -> None:
        setattr(scheduler, _PORT_ARGS, port_args)

    def launch(original: Callable[..., Any], cls: type, scheduler: Any) -> Any:
        from .detour import Detour

        port_args = getattr(scheduler, _PORT_ARGS)
        _check(cls, scheduler, port_args)
        server = original(cls, scheduler)
        Detour.begin(settings, server, scheduler, port_args)
        return server

    return [
        (SCHEDULER_SOCKETS, "AFTER", after_init_ipc_channels),
        (f"{_SERVER}.launch", "AROUND", launch),
        (f"{_ACCUMULATOR}.to_payload", "AROUND", _complete),
        (f"{_SERVER}.push_generation", "AROUND", _push_generation),
        (f"{_SERVER}.push_abort", "AROUND", _push_abort),
        (f"{_SERVER}.push_health_ack", "AROUND", _push_health_ack),
        (f"{_SERVER}.drain", "AFTER", _after_drain),
    ]


def _check(cls: type, scheduler: Any, port_args: Any) -> None:
    """Refuse a server whose output would bypass Afterbay. SGLang ends if this raises."""
    from ..rendezvous import Facts

    why = None
    ranks = Facts.of(scheduler, port_args).dp_size
    if not scheduler.is_generation:
        why = "of an embedding model: its output does not go to the Rust server"
    elif ranks > 1:
        why = f"with {ranks} DP ranks: only one was tried"
    elif cls.__name__ != _SERVER.rpartition(".")[2]:
        why = f"of a class of its own, {cls.__module__}.{cls.__name__}: its methods may be others"
    if why:
        raise RuntimeError(f"afterbay: cannot stand before a Rust server {why}. Unset SGLANG_RUST_SERVER, or unset AFTERBAY_* to run without Afterbay")


def _complete(original: Callable[..., Any], accumulator: Any, *args: Any, **kwargs: Any) -> Any:
    from . import rows

    batch = original(accumulator, *args, **kwargs)
    if batch is not None:
        rows.complete(batch, accumulator.output_reqs)
    return batch


# Each of these methods is called twice: by the scheduler, whose call goes to Afterbay, and by the thread that delivers to the server
# what returns from Afterbay.


def _push_generation(original: Callable[..., Any], server: Any, batch: Any, decode_latencies: Dict[int, float]) -> None:
    detour = server._afterbay_detour
    if detour.delivers():
        original(server, batch, decode_latencies)
    else:
        detour.send(batch, decode_latencies)


def _push_abort(original: Callable[..., Any], server: Any, abort: Any, request: Any) -> None:
    detour = server._afterbay_detour
    if detour.delivers():
        original(server, abort, request)
    else:
        detour.send_abort(abort, request)


def _push_health_ack(original: Callable[..., Any], server: Any) -> None:
    detour = server._afterbay_detour
    if detour.delivers():
        original(server)
    else:
        detour.send_health_ack()


def _after_drain(requests: List[Any], server: Any, *_args: Any, **_kwargs: Any) -> List[Any]:
    requests.extend(server._afterbay_detour.aborts())
    return requests
