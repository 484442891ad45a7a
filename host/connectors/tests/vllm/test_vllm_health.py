"""Tests vLLM's health while Afterbay is away."""
import asyncio
import types

import pytest

import afterbay_vllm
from afterbay_vllm import health


@pytest.fixture
def peers(fake_vllm, fake_modules, monkeypatch):
    fake_modules("zmq", PULL="PULL")
    monkeypatch.setattr(health, "_peers", [])
    monkeypatch.setattr(health, "Peer", lambda socket, _logger, rendezvous, expected: types.SimpleNamespace(socket=socket, rendezvous=rendezvous, expected=expected))
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///in")
    monkeypatch.setenv("AFTERBAY_RENDEZVOUS", "/run/r.json")
    afterbay_vllm.register()
    return health._peers


def test_the_output_socket_of_an_api_server_is_watched(fake_vllm, peers):
    from vllm.v1.engine import core_client

    assert core_client.make_zmq_socket("ctx", "ipc:///in", "ROUTER", bind=True) == "socket"
    assert peers == []
    assert core_client.make_zmq_socket("ctx", "ipc:///out", "PULL") == "socket"
    assert [(peer.socket, peer.rendezvous, peer.expected) for peer in peers] == [("socket", "/run/r.json", False)]
    assert fake_vllm.calls[-1] == ("socket", "ctx", "ipc:///out", "PULL", None)


def test_an_engine_is_unhealthy_while_afterbay_is_lost(fake_vllm, peers):
    from vllm.v1.engine.exceptions import EngineDeadError

    engine = fake_vllm.AsyncLLM()
    asyncio.run(engine.check_health())
    asked = []
    peers.append(types.SimpleNamespace(is_lost=lambda: True, expect=lambda: asked.append("expect")))
    with pytest.raises(EngineDeadError):
        asyncio.run(engine.check_health())
    assert asked == ["expect"]
    peers.clear()
    asyncio.run(engine.check_health())
