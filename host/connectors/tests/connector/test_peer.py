"""Tests the watch over Afterbay's connection, with real sockets."""
import logging
import queue
import types

import pytest
import zmq
import zmq.asyncio

from afterbay_connector import peer as peer_module
from afterbay_connector.peer import Peer

logger = logging.getLogger("afterbay.test")
PATIENCE = 20


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context
        context.destroy(linger=0)


def watched(socket, **kwargs):
    """A peer, and the queue of its changes."""
    changes = queue.Queue()
    return Peer(socket, logger, changes.put, **kwargs), changes


def bound(context, path):
    socket = context.socket(zmq.PULL)
    socket.bind(f"ipc://{path}")
    return socket


def test_the_engines_socket_that_connects_notices_afterbays_end_and_return(context, tmp_path, caplog):
    engine = context.socket(zmq.PUSH)
    _, changes = watched(engine)
    engine.connect(f"ipc://{tmp_path}/in")
    assert changes.get(timeout=PATIENCE) is False
    afterbay = bound(context, tmp_path / "in")
    assert changes.get(timeout=PATIENCE) is True
    assert caplog.text == "", "the start is no event"
    afterbay.close(linger=0)
    assert changes.get(timeout=PATIENCE) is False
    assert "Afterbay has closed the connection" in caplog.text
    _again = bound(context, tmp_path / "in")
    assert changes.get(timeout=PATIENCE) is True
    assert "Afterbay is connected again after" in caplog.text


@pytest.mark.parametrize("kind", [zmq.Context, zmq.asyncio.Context])
def test_the_engines_socket_that_is_bound_notices_afterbay(context, tmp_path, kind):
    engine = bound(kind(context), tmp_path / "out")
    _, changes = watched(engine)
    assert changes.get(timeout=PATIENCE) is False
    for _ in range(2):
        afterbay = context.socket(zmq.PUSH)
        afterbay.connect(f"ipc://{tmp_path}/out")
        assert changes.get(timeout=PATIENCE) is True
        afterbay.close(linger=0)
        assert changes.get(timeout=PATIENCE) is False


def test_a_long_absence_is_told_once_with_the_command_that_ends_it(context, tmp_path, caplog, monkeypatch):
    told = queue.Queue()
    monkeypatch.setattr(peer_module, "AWAY_SECONDS_MAX", 0.01)
    monkeypatch.setattr(logger, "error", lambda message, *args: told.put(message % args))
    (tmp_path / "start").write_text("")
    engine = context.socket(zmq.PUSH)
    peer, changes = watched(engine, rendezvous=str(tmp_path / "rendezvous.json"))
    engine.connect(f"ipc://{tmp_path}/in")
    assert told.get(timeout=PATIENCE).endswith(f"the engine is unhealthy. Start it again: sh {tmp_path}/start")
    assert peer.is_lost()
    assert changes.get(timeout=PATIENCE) is False
    _afterbay = bound(context, tmp_path / "in")
    assert changes.get(timeout=PATIENCE) is True
    assert not peer.is_lost() and told.empty()


def test_an_afterbay_that_is_not_expected_yet_is_not_away(context, tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(peer_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    engine = bound(context, tmp_path / "out")
    peer, _ = watched(engine, expected=False)
    now[0] += 60
    assert not peer.is_lost()
    peer.expect()
    assert not peer.is_lost()
    now[0] += peer_module.AWAY_SECONDS_MAX
    assert peer.is_lost()
    peer.expect()
    assert peer.is_lost(), "it is expected once"


def test_the_end_of_the_engines_socket_is_no_absence(context, tmp_path, caplog):
    engine = context.socket(zmq.PUSH)
    peer, changes = watched(engine)
    afterbay = bound(context, tmp_path / "in")
    engine.connect(f"ipc://{tmp_path}/in")
    assert [changes.get(timeout=PATIENCE) for _ in range(2)] == [False, True]
    engine.close(linger=0)
    context.destroy(linger=0)
    assert changes.empty() and caplog.text == "" and not peer.is_lost()
    afterbay.close()


def test_a_context_ends_while_afterbay_is_watched(tmp_path):
    context = zmq.Context()
    engine = context.socket(zmq.PUSH)
    peer, _ = watched(engine)
    engine.close(linger=0)
    context.term()
    assert not peer.is_lost()
