"""The detour of a batch: from the scheduler's thread to Afterbay, and from Afterbay to the Rust server.

This module owns the sockets, the threads that receive from Afterbay, and the count of returned batches. It must not know columns (`rows`).
"""
from __future__ import annotations

import logging
import os
import queue
import threading
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Optional

from afterbay_connector.credit import CreditPage
from afterbay_connector.peer import Peer
from afterbay_connector.rendezvous import write
from afterbay_connector.settings import IPC_PATH_BYTES_MAX

from .. import abort, rendezvous
from ..ingress import check_release, output_sender, replace_socket
from ..settings import Settings, fill
from . import rows

logger = logging.getLogger("afterbay.sglang")

# The number of finished requests that wait for the return of their last row. Afterbay may have dropped the row, so the oldest request is
# forgotten: the server's metrics then lack its latency.
FINISHED_MAX = 4096
# Aborts that the scheduler has not taken yet. Others wait in the socket.
ABORTS_MAX = 256


class Detour:
    def __init__(self, server: Any, sender: Any, aborts: Any, returns: Any, page: Optional[CreditPage]):
        """`sender` holds the PUSH to Afterbay, `aborts` is the PULL of aborts or None, `returns` the PULL of what Afterbay sends."""
        self._server = server
        self._sender = sender
        self._aborts: "queue.Queue[Any]" = queue.Queue(ABORTS_MAX)
        self._page = page
        # By rid: a request's decode latency in seconds, or None for a request that ended outside the output stream.
        self._finished: "OrderedDict[str, Optional[float]]" = OrderedDict()
        self._health_ack_is_due = False
        self._thread = self._receives("afterbay-return", returns, self._return)
        # A thread of its own, because a look at a socket in each step costs the scheduler as much as a small batch.
        self._abort_thread = self._receives("afterbay-aborts", aborts, self._receive_abort) if aborts else None

    @classmethod
    def begin(cls, settings: Settings, server: Any, scheduler: Any, port_args: Any) -> None:
        """Re-route the scheduler's output, start the threads, and write the rendezvous file. Call it before there is output."""
        import zmq
        from sglang.srt.utils.network import get_zmq_socket

        facts = rendezvous.Facts.of(scheduler, port_args)
        ingress = fill(settings.ingress, facts.dp_rank, "AFTERBAY_INGRESS")
        file = os.path.abspath(fill(settings.rendezvous, facts.dp_rank, "AFTERBAY_RENDEZVOUS"))
        path = f"{file}.rust-server"
        if len(os.fsencode(path)) > IPC_PATH_BYTES_MAX:
            raise RuntimeError(f"afterbay: the path of ipc://{path} is over {IPC_PATH_BYTES_MAX} bytes: AFTERBAY_RENDEZVOUS must be shorter")
        introduced = rendezvous.introduce(facts)
        check_release(introduced)
        sender = output_sender(scheduler)
        # Health checks need no more: their answer passes Afterbay.
        sender.socket = replace_socket(sender.socket, ingress, introduced, lambda socket: Peer(socket, logger, rendezvous=file))
        aborts = abort.of_scheduler(settings, scheduler, facts.dp_rank, facts.dp_size)
        # The page opens before the socket is bound: a connected Afterbay then finds the new generation.
        page = CreditPage(settings.credit, "tokenizer") if settings.credit else None
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        returns = get_zmq_socket(sender.socket.context, zmq.PULL, f"ipc://{path}", True)
        detour = cls(server, sender, abort.input_socket(scheduler) if aborts[0] else None, returns, page)
        server._afterbay_detour = detour
        detour.start()
        logger.info("afterbay: the output goes to %s, and returns to the Rust server by ipc://%s", ingress, path)
        facts.mode, facts.down, facts.down_kind = "rust_server", f"ipc://{path}", "tokenizer"
        content = rendezvous.describe(facts, ingress, settings, aborts)
        content.update(
            credit=os.path.abspath(page.path) if page else None,
            credit_none=None if page else "AFTERBAY_CREDIT is not set",
            workers=[],
            text_ingress=None,
            text_none="SGLang's Rust server has no detokenizer process",
        )
        write(file, content)

    def start(self) -> None:
        """Begin to receive. The server must have its detour, because batches of an earlier process may wait in Afterbay."""
        self._thread.start()
        if self._abort_thread:
            self._abort_thread.start()

    def delivers(self) -> bool:
        """Return whether this thread delivers what returned."""
        return threading.current_thread() is self._thread

    def send(self, batch: Any, decode_latencies: Dict[int, float]) -> None:
        for row, latency in decode_latencies.items():
            self._remember(batch.rids[row], latency)
        self._send(batch)

    def send_abort(self, abort: Any, request: Any) -> None:
        self._remember(abort.rid, None)
        self._send(rows.of_abort(abort, request))

    def send_health_ack(self) -> None:
        """Acknowledge the health checks when a batch that is sent now has returned: not while Afterbay stands still."""
        self._health_ack_is_due = True
        self._send(rows.empty())

    def aborts(self) -> List[Any]:
        """Return the aborts that Afterbay has sent since the last call, at most ABORTS_MAX."""
        return [self._aborts.get_nowait() for _ in range(self._aborts.qsize())]

    def _send(self, batch: Any) -> None:
        from sglang.srt.managers import io_struct

        io_struct.sock_send(self._sender.socket, rows.outgoing(batch))

    def _remember(self, rid: str, latency: Optional[float]) -> None:
        self._finished[rid] = latency
        if len(self._finished) > FINISHED_MAX:
            self._finished.popitem(last=False)

    def _receives(self, name: str, socket: Any, receive: Callable[[bytes], None]) -> threading.Thread:
        def run() -> None:
            try:
                while True:
                    receive(socket.recv())
            except BaseException:
                logger.critical("afterbay: this process ends, because its thread %s has failed", name, exc_info=True)
                _end_process()

        return threading.Thread(target=run, daemon=True, name=name)

    def _return(self, data: bytes) -> None:
        try:
            self._deliver(rows.returned(data))
        finally:
            # It counts although it may end the process, so that the next one does not get it.
            if self._page:
                self._page.finished()

    def _receive_abort(self, data: bytes) -> None:
        message = rows.decoded(data)
        if type(message).__name__ == "AbortReq":
            self._aborts.put(message)

    def _deliver(self, batch: Any) -> None:
        if not batch.rids:
            if self._health_ack_is_due:
                self._health_ack_is_due = False
                self._server.push_health_ack()
            return
        latencies = {}
        if self._finished:
            for row, rid in enumerate(batch.rids):
                if batch.finished_reasons[row] is None or rid not in self._finished:
                    continue
                latency = self._finished.pop(rid, None)
                if latency is not None:
                    latencies[row] = latency
                elif len(batch.rids) == 1 and not batch.output_ids[0]:
                    return self._server.push_abort(*rows.to_abort(batch))
        # An abort that Afterbay joined with other rows is delivered like them: the client gets the same reason.
        self._server.push_generation(batch, latencies)


def _end_process() -> None:
    """End at once. SGLang's first process notices it and ends the others."""
    logging.shutdown()
    os._exit(1)
