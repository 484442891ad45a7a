"""Tests that a request with a lease goes on after its client has left, with fakes of SGLang's tokenizer and scheduler."""
import json
import types

import pytest

from afterbay_connector.request_id import IdParts, LeaseSource
from afterbay_sglang import abort, leases
from afterbay_sglang.settings import Refused, Settings
from conftest import SenderWrapper

LEASED, OTHER = "~lease-60s~7", "8"


class AbortReq:
    def __init__(self, rid=None, abort_all=False):
        self.rid, self.abort_all, self.http_worker_ipc = rid, abort_all, None


@pytest.fixture(autouse=True)
def io_struct(fake_modules):
    fake_modules("sglang.srt.managers.io_struct", AbortReq=AbortReq)


class Tokenizer:
    """Aborts as SGLang does, through the hook, and hands the messages to a scheduler."""

    def __init__(self, scheduler, is_old=False):
        self.scheduler = scheduler
        self.rid_to_state = {rid: types.SimpleNamespace(out_list=[1, 2]) for rid in (LEASED, OTHER)}
        if is_old:
            self.send_to_scheduler = types.SimpleNamespace(send_pyobj=scheduler.receive)
        else:
            self._dispatch_to_scheduler = scheduler.receive

    def abort_request(self, *args, **kwargs):
        settings = Settings("ipc:///a", None, None, abort="ipc:///b", ids=IdParts(lease=LeaseSource(600)))
        [(target, kind, hook)] = leases.hooks(settings)
        assert (target.rpartition(".")[2], kind) == ("abort_request", "AROUND")

        def original(tokenizer, rid="", abort_all=False):
            tokenizer.scheduler.receive(AbortReq(rid, abort_all))

        hook(original, self, *args, **kwargs)


class Scheduler:
    def __init__(self, rank=0):
        self.told, self.aborted = [], []
        socket = types.SimpleNamespace(send=lambda message: self.told.append(json.loads(message)))
        self.ipc_channels = types.SimpleNamespace(send_to_detokenizer=SenderWrapper(None if rank else socket))

    def receive(self, message):
        abort.end_exactly(lambda scheduler, message: scheduler.aborted.append(message.rid), self, message)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_client_that_leaves_is_told_to_afterbay_once_and_its_outputs_do_not_pile_up(is_old):
    scheduler = Scheduler()
    tokenizer = Tokenizer(scheduler, is_old)
    for _ in range(2):
        tokenizer.abort_request(LEASED)
    assert (scheduler.told, scheduler.aborted) == ([{"afterbay": "left", "rid": LEASED}], [])
    state = tokenizer.rid_to_state[LEASED]
    for output in ("a", "b", "c"):
        state.out_list.append(output)
    assert state.out_list == ["c"]


def test_other_aborts_are_sglangs_own():
    scheduler = Scheduler()
    tokenizer = Tokenizer(scheduler)
    tokenizer.abort_request(OTHER)
    tokenizer.abort_request("~lease-60s~unknown")
    tokenizer.abort_request(rid=LEASED, abort_all=False)
    tokenizer.abort_request(abort_all=True)
    # A timeout of the scheduler.
    scheduler.receive(AbortReq(LEASED))
    assert (scheduler.told, scheduler.aborted) == ([], [OTHER, "~lease-60s~unknown", LEASED, "", LEASED])
    assert tokenizer.rid_to_state[LEASED].out_list == [1, 2]


def test_a_rank_without_output_says_nothing_and_ends_nothing():
    scheduler = Scheduler(rank=1)
    Tokenizer(scheduler).abort_request(LEASED)
    assert (scheduler.told, scheduler.aborted) == ([], [])


def test_without_the_variable_nothing_is_hooked():
    assert leases.hooks(Settings("ipc:///a", None, None)) == []


@pytest.mark.parametrize(
    "env, why",
    [
        ({}, "AFTERBAY_LEASE_MAX needs AFTERBAY_INGRESS"),
        ({"AFTERBAY_INGRESS": "ipc:///a"}, "AFTERBAY_LEASE_MAX needs AFTERBAY_ABORT"),
        (
            {"AFTERBAY_INGRESS": "ipc:///a", "AFTERBAY_ABORT": "ipc:///b", "AFTERBAY_RENDEZVOUS": "/r", "SGLANG_RUST_SERVER": "1"},
            "AFTERBAY_LEASE_MAX: SGLang's Rust server",
        ),
    ],
)
def test_a_lease_that_nobody_could_end_or_grant_is_refused(env, why):
    with pytest.raises(Refused, match=why):
        Settings.from_environment({"AFTERBAY_LEASE_MAX": "10m", **env})
