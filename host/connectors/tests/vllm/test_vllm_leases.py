"""Tests that a request with a lease goes on after its client has left, with a fake vLLM."""
import asyncio
import json
import queue
import types

import pytest

import afterbay_vllm
from afterbay_vllm.settings import Refused, Settings

LEASED, OTHER = "chatcmpl-~lease-60s~7-1a2b", "chatcmpl-8-1a2b"


@pytest.fixture
def leases(fake_vllm, monkeypatch):
    for name, value in dict(INGRESS="ipc:///a,ipc:///b", ABORT="ipc:///c,ipc:///d", LEASE_MAX="10m").items():
        monkeypatch.setenv(f"AFTERBAY_{name}", value)
    afterbay_vllm.register()


class FrontEnd:
    """An API server whose messages an EngineCore takes, by both of its queues."""

    def __init__(self, fake_vllm):
        self.core = fake_vllm.EngineCore()
        self.core.output_queue, self.core.scheduler = queue.Queue(), types.SimpleNamespace(requests={})
        for client, rid in enumerate([OTHER, LEASED]):
            self.core.scheduler.requests[rid] = types.SimpleNamespace(client_index=client)
        self.llm, self.calls = fake_vllm.AsyncLLM(), fake_vllm.calls
        self.llm.engine_core = self.client = fake_vllm.AsyncMPClient("config")
        self.client.send = self.send

    async def send(self, message):
        kind, ids, _engine = message
        for _ in range(2) if kind == "ABORT" else ():
            self.core.abort_requests(ids)

    def abort(self, *args, **kwargs):
        """Return the ids that are aborted, and what Afterbay is told: the client and the message."""
        self.calls.clear()
        asyncio.run(self.llm.abort(*args, **kwargs))
        aborted = [ids for name, ids in self.calls if name == "abort"]
        told = [self.core.output_queue.get() for _ in range(self.core.output_queue.qsize())]
        return aborted, [(message.client, json.loads(message.content)) for message in told]


def test_a_client_that_leaves_is_told_to_afterbay_once_and_ends_no_request_with_a_lease(leases, fake_vllm):
    front_end = FrontEnd(fake_vllm)
    left = [(1, {"afterbay": "left", "rid": LEASED})]
    assert front_end.abort([LEASED, OTHER], internal=True) == ([[OTHER]] * 2, left)
    assert front_end.abort(LEASED, internal=True) == ([], [])
    assert front_end.abort("unknown~lease-1s~7", internal=True) == ([], [])


def test_who_asks_for_an_abort_gets_it_and_so_do_stop_strings_and_afterbay(leases, fake_vllm):
    front_end = FrontEnd(fake_vllm)
    assert front_end.abort("chatcmpl-~lease-60s~7") == ([[LEASED]] * 2, [])
    # For a stop string, vLLM's API server asks the client of the EngineCore itself.
    asyncio.run(front_end.client._send_input(types.SimpleNamespace(name="ABORT"), [LEASED]))
    # Afterbay writes to the EngineCore's socket.
    front_end.core.abort_requests([LEASED])
    assert front_end.calls == [("abort", [LEASED])] * 5


def test_the_record_says_the_lease(leases, fake_vllm, engine):
    from afterbay_vllm import request_record

    request = types.SimpleNamespace(request_id=LEASED, prompt_token_ids=[1])
    line = request_record._record(engine(), request).split(b"\n")[0]
    assert json.loads(line)["lease_ms"] == 60_000


def test_without_the_variable_nothing_is_hooked(fake_vllm, monkeypatch):
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    afterbay_vllm.register()
    assert FrontEnd(fake_vllm).abort(LEASED, internal=True) == ([[LEASED]] * 2, [])


@pytest.mark.parametrize(
    "env, why",
    [
        ({}, "AFTERBAY_LEASE_MAX .*needs AFTERBAY_INGRESS"),
        ({"AFTERBAY_INGRESS": "ipc:///a"}, "AFTERBAY_LEASE_MAX needs AFTERBAY_ABORT"),
        ({"AFTERBAY_INGRESS": "ipc:///a", "AFTERBAY_ABORT": "ipc:///b", "VLLM_USE_RUST_FRONTEND": "1"}, "AFTERBAY_LEASE_MAX: the Rust front end"),
    ],
)
def test_a_lease_that_nobody_could_end_or_grant_is_refused(env, why):
    with pytest.raises(Refused, match=why):
        Settings.from_environment({"AFTERBAY_LEASE_MAX": "10m", **env})
