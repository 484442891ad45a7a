"""Tests the scheduler's input socket and its aborts with fakes of pyzmq's and SGLang's objects, and the description of an AbortReq."""
import dataclasses
import threading
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
    http_worker_ipc: Optional[str] = None
    abort_all: bool = False


@pytest.fixture(autouse=True)
def io_struct(fake_modules):
    fake_modules("zmq", TYPE="TYPE", PULL="PULL", IPV6="IPV6", ZMQError=type("ZMQError", (Exception,), {}))
    return fake_modules("sglang.srt.managers.io_struct", AbortReq=AbortReq)


def connect(socket, endpoint="ipc:///abort", rank=0, size=1, channels=True):
    holder = types.SimpleNamespace(recv_from_tokenizer=socket)
    scheduler = types.SimpleNamespace(ipc_channels=holder) if channels else holder
    return abort.of_scheduler(Settings("ipc:///a", None, None, abort=endpoint), scheduler, rank, size)


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
    described = {"module": AbortReq.__module__, "class": "AbortReq", "fields": ["rid", "http_worker_ipc", "abort_all"], "struct": False}
    assert abort.request() == described


@dataclasses.dataclass
class NeedsMore:
    rid: str
    why: str


@dataclasses.dataclass
class EndsAll:
    rid: str
    http_worker_ipc: Optional[str] = None
    abort_all: bool = True


@dataclasses.dataclass
class NamesNoWorker:
    rid: str


@pytest.mark.parametrize("kind", [NeedsMore, EndsAll, NamesNoWorker, None, "AbortReq"])
def test_an_unknown_abort_req_is_not_used(io_struct, kind):
    io_struct.AbortReq = kind
    assert abort.request() is None
    socket = Socket()
    endpoint, why = connect(socket)
    assert endpoint is None and "AbortReq" in why and socket.connected == []


class Req:
    """Ends as SGLang's requests do."""

    def __init__(self, rid):
        self.rid, self.told = rid, None


class WaitingForImages(Req):
    """Of a class that the scheduler does not import."""


class Scheduler:
    """Ends requests as SGLang does, in three of its queues."""

    def __init__(self, *rids):
        self.running, self.waiting, images = ([kind(rid) for rid in rids] for kind in (Req, Req, WaitingForImages))
        self.mm_receiver = types.SimpleNamespace(waiting_list=images)

    def abort_request(self, recv_req):
        for request in self.running + self.waiting + self.mm_receiver.waiting_list:
            if recv_req.abort_all or request.rid.startswith(recv_req.rid):
                request.told = request.rid

    def ended(self, message):
        """The rids that the message ends in each queue, through the hook."""
        [(target, kind, hook)] = abort.hooks(Settings("ipc:///a", None, None, abort="ipc:///abort"))
        assert (target.rpartition(".")[2], kind) == ("abort_request", "AROUND")
        hook(Scheduler.abort_request, self, message)
        return [[request.told for request in queue if request.told] for queue in (self.running, self.waiting, self.mm_receiver.waiting_list)]


@pytest.fixture
def requests(fake_modules):
    fake_modules("sglang.srt.managers.schedule_batch", Req=Req)


RIDS = ["job_1", "job_10", "job_1a", "other"]


def test_an_abort_from_afterbay_ends_only_the_request_that_it_names(requests, caplog):
    caplog.set_level("INFO")
    scheduler = Scheduler(*RIDS)
    assert scheduler.ended(AbortReq(rid=abort.EXACT, http_worker_ipc="job_1")) == [["job_1"]] * 3
    assert [type(request.told) for request in scheduler.running[:1]] == [str], "it is sent to the reader"
    assert "request 'job_1' is ended" in caplog.text
    assert [request.rid for request in scheduler.waiting] == RIDS and not hasattr(Req, "rid") and not hasattr(WaitingForImages, "rid")


def test_an_abort_from_afterbay_of_a_request_that_is_not_there_ends_none(requests, caplog):
    caplog.set_level("INFO")
    assert Scheduler(*RIDS).ended(AbortReq(rid=abort.EXACT, http_worker_ipc="job_")) == [[], [], []]
    assert "request 'job_' is not here, so nothing is ended" in caplog.text


def test_a_tokenizers_abort_is_sglangs_own(requests):
    assert Scheduler(*RIDS).ended(AbortReq(rid="job_1", http_worker_ipc="ipc:///worker")) == [["job_1", "job_10", "job_1a"]] * 3
    assert Scheduler(*RIDS).ended(AbortReq(rid="", abort_all=True)) == [RIDS] * 3
    # A client's rid may be the mark. Its tokenizer says nothing more, or the name of its socket.
    for ipc in (None, "ipc:///worker"):
        assert Scheduler(*RIDS).ended(AbortReq(rid=abort.EXACT, http_worker_ipc=ipc)) == [[], [], []]


def test_a_scheduler_without_the_connector_ends_nothing_for_afterbay():
    scheduler = Scheduler(*RIDS)
    scheduler.abort_request(AbortReq(rid=abort.EXACT, http_worker_ipc="job_1"))
    assert not any(request.told for request in scheduler.running)


def test_a_scheduler_that_raises_keeps_its_requests_as_they_were(requests):
    def fails(scheduler, message):
        raise RuntimeError(scheduler.running[1].rid)

    scheduler = Scheduler(*RIDS)
    with pytest.raises(RuntimeError):
        abort.end_exactly(fails, scheduler, AbortReq(rid=abort.EXACT, http_worker_ipc="job_1"))
    assert scheduler.running[1].rid.startswith("job_1") and not hasattr(Req, "rid")


def test_other_threads_read_rids_as_they_are(requests):
    read = []

    def reads(scheduler, message):
        thread = threading.Thread(target=lambda: read.append(scheduler.running[1].rid))
        thread.start()
        thread.join()

    abort.end_exactly(reads, Scheduler(*RIDS), AbortReq(rid=abort.EXACT, http_worker_ipc="job_1"))
    assert [type(rid) for rid in read] == [str]


def test_without_the_variable_nothing_is_hooked():
    assert abort.hooks(Settings("ipc:///a", None, None)) == []
