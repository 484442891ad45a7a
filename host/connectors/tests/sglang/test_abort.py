"""Tests the scheduler's input socket with fakes of pyzmq's and SGLang's objects, and the description of an AbortReq."""
import dataclasses
import types
from typing import Optional

import pytest

from afterbay_sglang import abort
from afterbay_sglang.settings import Settings


class Socket:
    def __init__(self, kind="PULL"):
        self.kind, self.options, self.connected = kind, {}, []

    def getsockopt(self, option):
        assert option == "TYPE"
        return self.kind

    def setsockopt(self, option, value):
        self.options[option] = value

    def connect(self, endpoint):
        self.connected.append(endpoint)


@dataclasses.dataclass
class AbortReq:
    """The class of 0.5.14."""

    rid: Optional[str] = None
    abort_all: bool = False


@pytest.fixture(autouse=True)
def io_struct(fake_modules):
    fake_modules("zmq", TYPE="TYPE", PULL="PULL", IPV6="IPV6", ZMQError=type("ZMQError", (Exception,), {}))
    return fake_modules("sglang.srt.managers.io_struct", AbortReq=AbortReq)


def connect(socket, endpoint="ipc:///abort", rank=0, size=1, channels=True):
    holder = types.SimpleNamespace(recv_from_tokenizer=socket)
    scheduler = types.SimpleNamespace(ipc_channels=holder) if channels else holder
    return abort.connect(Settings("ipc:///a", None, None, abort=endpoint), scheduler, rank, size)


@pytest.mark.parametrize("channels", [True, False], ids=["ipc_channels (0.5.13 on)", "on the scheduler (0.5.11)"])
def test_the_socket_that_receives_requests_connects_to_afterbay_too(channels):
    socket = Socket()
    assert connect(socket, channels=channels) == ("ipc:///abort", None)
    assert socket.connected == ["ipc:///abort"]


def test_without_the_variable_nothing_is_connected():
    socket = Socket()
    assert connect(socket, endpoint=None) == (None, "AFTERBAY_ABORT is not set")
    assert socket.connected == []


def test_an_ipv6_endpoint_enables_ipv6():
    socket = Socket()
    connect(socket, "tcp://[::1]:5555")
    assert socket.options == {"IPV6": 1}


def test_each_dp_rank_has_its_own_endpoint_and_no_shared_one(caplog):
    socket = Socket()
    assert connect(socket, "ipc:///abort-{dp_rank}", rank=2, size=4) == ("ipc:///abort-2", None)
    shared = Socket()
    endpoint, why = connect(shared, "ipc:///abort", rank=2, size=4)
    assert endpoint is None and "4 DP ranks share AFTERBAY_ABORT" in why and why in caplog.text
    assert shared.connected == [], "an abort could reach any rank"


@pytest.mark.parametrize("socket", [None, types.SimpleNamespace(drain=None), Socket("DEALER")], ids=["none", "no socket", "no PULL"])
def test_a_socket_that_is_no_pull_stays_unchanged(socket):
    endpoint, why = connect(socket)
    assert endpoint is None and "recv_from_tokenizer" in why


def test_an_abort_req_is_described_for_afterbay(io_struct):
    described = {"module": AbortReq.__module__, "class": "AbortReq", "fields": ["rid", "abort_all"], "struct": False}
    assert abort.request() == described


@dataclasses.dataclass
class NeedsMore:
    rid: str
    why: str


@dataclasses.dataclass
class EndsAll:
    rid: str
    abort_all: bool = True


@pytest.mark.parametrize("kind", [NeedsMore, EndsAll, None, "AbortReq"])
def test_an_unknown_abort_req_is_not_used(io_struct, kind):
    io_struct.AbortReq = kind
    assert abort.request() is None
    socket = Socket()
    endpoint, why = connect(socket)
    assert endpoint is None and "AbortReq" in why and socket.connected == []
