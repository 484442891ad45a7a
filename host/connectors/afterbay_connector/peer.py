"""Watches whether Afterbay is connected to a socket of the engine.

ZeroMQ's monitor reports when a connection begins and ends, to a thread that sleeps in between, so that no message costs anything. This module must
not know any engine: it logs, and says how long Afterbay has been away.
"""
from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Callable, Optional

# A longer absence makes the engine unhealthy. The connections outlive a crash of Afterbay under a supervisor, and its upgrades.
AWAY_SECONDS_MAX = 20.0


class Peer:
    """The other end of a socket that only Afterbay connects to, or that connects only to Afterbay."""

    def __init__(
        self,
        socket: Any,
        logger: logging.Logger,
        changed: Callable[[bool], None] = lambda is_here: None,
        rendezvous: Optional[str] = None,
        expected: bool = True,
    ):
        """Call it before the socket connects, or right after it is bound. `changed` is called in a thread of its own with whether
        Afterbay is connected. `rendezvous` is the rendezvous file. Unless Afterbay is `expected` at once, it is away only after its first
        connection, or after `expect`."""
        import zmq

        self._logger, self._changed, self._rendezvous = logger, changed, rendezvous
        self._is_here = False
        self._since: Optional[float] = time.monotonic() if expected else None
        address = f"inproc://afterbay-peer-{id(self)}"
        socket.monitor(address, zmq.EVENT_CONNECTED | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED)
        # A socket of asyncio has a context of asyncio.
        monitor = zmq.Context.shadow(socket.context.underlying).socket(zmq.PAIR)
        monitor.connect(address)
        changed(False)
        threading.Thread(target=self._watch, args=(monitor,), daemon=True, name="afterbay-peer").start()

    def expect(self) -> None:
        """Afterbay has had all it needs to connect."""
        if self._since is None:
            self._since = time.monotonic()

    def is_lost(self) -> bool:
        """Return whether Afterbay has been away for too long."""
        return not self._is_here and self._away() >= AWAY_SECONDS_MAX

    def _away(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since

    def _watch(self, monitor: Any) -> None:
        import zmq

        try:
            self._follow(monitor)
        except zmq.ZMQError:
            pass  # the engine ends
        finally:
            monitor.close(linger=0)

    def _follow(self, monitor: Any) -> None:
        import zmq
        from zmq.utils.monitor import recv_monitor_message

        connections, was_here, is_told = set(), False, False
        while True:
            wait = None if self._is_here or is_told else 1.0 if self._since is None else max(0.0, AWAY_SECONDS_MAX - self._away())
            if not monitor.poll(None if wait is None else int(wait * 1000) + 1):
                if self.is_lost():
                    is_told = True
                    self._logger.error("afterbay: Afterbay is away for %d s: no client gets a token, and the engine is unhealthy. %s", AWAY_SECONDS_MAX, self._remedy())
                continue
            event = recv_monitor_message(monitor)
            if event["event"] == zmq.EVENT_MONITOR_STOPPED:
                self._is_here = True  # the engine has closed the socket
                return
            if event["event"] == zmq.EVENT_DISCONNECTED:
                connections.discard(event["value"])
            else:
                connections.add(event["value"])
            if bool(connections) == self._is_here:
                continue
            if connections:
                if was_here or is_told:
                    self._logger.warning("afterbay: Afterbay is connected again after %.1f s", self._away())
                self._is_here, was_here, is_told = True, True, False
            else:
                self._since, self._is_here = time.monotonic(), False
                self._logger.warning("afterbay: Afterbay has closed the connection. Outputs wait in this process, and in %d s the engine is unhealthy", AWAY_SECONDS_MAX)
            self._changed(self._is_here)

    def _remedy(self) -> str:
        """Return how to start Afterbay again. The launcher writes the script beside the rendezvous file."""
        start = os.path.join(os.path.dirname(os.path.abspath(self._rendezvous or "")), "start")
        return f"Start it again: sh {start}" if self._rendezvous and os.path.exists(start) else "Start it again"
