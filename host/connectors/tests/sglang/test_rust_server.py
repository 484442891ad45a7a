"""Tests the way of a batch to SGLang's Rust server and back, with real sockets and fakes of SGLang's classes."""
import json
import pickle
import threading
import types
from array import array

import pytest
import zmq

from conftest import SenderWrapper
from afterbay_connector.credit import PAGE_BYTES, CreditPage
from afterbay_connector.settings import Refused
from afterbay_sglang import rust_server
from afterbay_sglang.rust_server import detour as detour_module
from afterbay_sglang.rust_server import rows
from afterbay_sglang.rust_server.detour import ABORTS_MAX, FINISHED_MAX, Detour
from afterbay_sglang.settings import Settings

HOOKS = {target.rpartition(".")[2]: hook for target, _, hook in rust_server.hooks(Settings("ipc:///in", "/r.json", None))}


class BatchTokenIDOutput:
    __struct_fields__ = (
        "rids http_worker_ipcs finished_reasons decoded_texts decode_ids read_offsets output_ids skip_special_tokens "
        "spaces_between_special_tokens no_stop_trim prompt_tokens reasoning_tokens completion_tokens cached_tokens cached_tokens_details "
        "weight_versions time_stats customized_info"
    ).split()

    def __init__(self, **columns):
        assert set(columns) <= set(self.__struct_fields__)
        self.__dict__.update(columns)


class AbortReq:
    def __init__(self, rid, finished_reason=None, abort_message=None, weight_versions=None):
        self.rid, self.finished_reason, self.abort_message, self.weight_versions = rid, finished_reason, abort_message, weight_versions


class Request:
    """A request of the scheduler that has sent two tokens, and has a third one that is not sent."""

    origin_input_ids, output_ids, send_token_offset = [1, 2, 3], [7, 8, 9], 2
    cached_tokens, reasoning_tokens = 1, 0


def in_rust_mode(rids, ids, reasons=None):
    """A batch as SGLang makes it for its Rust server."""
    batch = rows.empty()
    batch.rids, batch.output_ids = list(rids), [array("q", each) for each in ids]
    batch.finished_reasons = reasons or [None] * len(rids)
    batch.prompt_tokens, batch.cached_tokens, batch.reasoning_tokens = ([3] * len(rids) for _ in range(3))
    batch.time_stats, batch.customized_info = [object()] * len(rids), {"key": []}
    return batch


class RustServer:
    """Records what reaches the Rust server. Its methods are hooked as SGLang hooks them."""

    def __init__(self):
        self.received, self.changed = [], threading.Condition()

    def _record(self, *what):
        with self.changed:
            self.received.append(what)
            self.changed.notify_all()

    def push_generation(self, batch, latencies):
        HOOKS["push_generation"](lambda _self, *args: self._record("generation", *args), self, batch, latencies)

    def push_abort(self, abort, request):
        HOOKS["push_abort"](lambda _self, *args: self._record("abort", *args), self, abort, request)

    def push_health_ack(self):
        HOOKS["push_health_ack"](lambda _self: self._record("health"), self)

    def wait(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.received) >= count, 10), self.received
        return self.received[-1]


@pytest.fixture
def io_struct(fake_modules):
    return fake_modules(
        "sglang.srt.managers.io_struct",
        _USE_PICKLE_IPC=True,
        BatchTokenIDOutput=BatchTokenIDOutput,
        AbortReq=AbortReq,
        sock_send=lambda socket, message: socket.send(pickle.dumps(message)),
        sock_recv=lambda socket, flags=0: pickle.loads(socket.recv(flags)),
    )


@pytest.fixture
def run(io_struct, tmp_path, monkeypatch):
    """A scheduler with a Rust server, and the two sockets of Afterbay."""
    ended = []
    monkeypatch.setattr(detour_module, "_end_process", lambda: ended.append(True))
    context = zmq.Context()

    def made(kind, name, bind):
        socket = context.socket(kind)
        socket.linger = 0
        (socket.bind if bind else socket.connect)(f"ipc://{tmp_path}/{name}")
        return socket

    afterbay_in, afterbay_out = made(zmq.PULL, "in", True), made(zmq.PUSH, "back", False)
    afterbay_in.rcvtimeo = 10_000
    sender, returns = types.SimpleNamespace(socket=made(zmq.PUSH, "in", False)), made(zmq.PULL, "back", True)
    aborts_in, aborts_out = made(zmq.PULL, "abort", False), made(zmq.PUSH, "abort", True)
    page = CreditPage(str(tmp_path / "credit"), "tokenizer")
    server = RustServer()
    server._afterbay_detour = detour = Detour(server, sender, aborts_in, returns, page)
    detour.start()

    def count():
        return int.from_bytes((tmp_path / "credit/tokenizer").read_bytes()[24:32], "little")

    yield types.SimpleNamespace(
        server=server,
        detour=detour,
        take=lambda: pickle.loads(afterbay_in.recv()),
        give=lambda batch: afterbay_out.send(batch if isinstance(batch, bytes) else pickle.dumps(batch)),
        nothing_was_sent=lambda: not afterbay_in.poll(0),
        abort=lambda message: aborts_out.send(pickle.dumps(message)),
        ended=ended,
        count=count,
    )
    afterbay_out.send(b"the end of this test")
    aborts_out.send(b"the end of this test")
    detour._thread.join(10)
    detour._abort_thread.join(10)
    page.close()
    for socket in (afterbay_in, afterbay_out, sender.socket, returns, aborts_in, aborts_out):
        socket.close()
    context.term()


def completed(batch):
    HOOKS["to_payload"](lambda _accumulator: batch, types.SimpleNamespace(output_reqs=[Request()] * len(batch.rids)))
    return batch


def test_the_columns_that_rust_mode_leaves_empty_are_filled(io_struct):
    batch = completed(in_rust_mode(["a", "b"], [[7, 8], [9]]))
    assert batch.completion_tokens == [2, 2], "the tokens that are sent, not those that the request has"
    assert batch.decode_ids is batch.output_ids
    filled = "http_worker_ipcs decoded_texts read_offsets skip_special_tokens spaces_between_special_tokens no_stop_trim cached_tokens_details"
    assert {len(getattr(batch, name)) for name in filled.split()} == {2}
    assert batch.time_stats is None and batch.customized_info is None
    assert HOOKS["to_payload"](lambda _accumulator: None, types.SimpleNamespace(output_reqs=[])) is None


def test_a_batch_reaches_the_server_only_when_it_has_returned(run):
    run.server.push_generation(completed(in_rust_mode(["a", "b"], [[7], [8]])), {})
    sent = run.take()
    assert (sent.rids, sent.output_ids, sent.decode_ids) == (["a", "b"], [[7], [8]], [[7], [8]])
    assert (run.server.received, run.count()) == ([], 0)
    sent.rids, sent.output_ids, sent.finished_reasons = ["b"], [[5, 6]], [None]  # as a plugin would
    run.give(sent)
    _, batch, latencies = run.server.wait(1)
    assert (batch.rids, batch.output_ids, latencies) == (["b"], [array("q", [5, 6])], {})
    assert run.nothing_was_sent(), "what returned does not go to Afterbay again"


def test_returned_batches_are_counted_as_finished(run):
    for number in range(3):
        run.give(in_rust_mode(["a"], [[number]]))
    run.server.wait(3)
    run.give(rows.empty())
    run.give(b"it ends the thread, so that everything before it has been counted")
    run.detour._thread.join(10)
    assert run.count() == 5


def test_a_latency_returns_with_its_request_wherever_its_row_is(run):
    reasons = [None, {"type": "length", "length": 1}]
    run.server.push_generation(completed(in_rust_mode(["a", "b"], [[7], [8]], reasons)), {1: 0.25})
    sent = run.take()
    run.give(in_rust_mode(["b"], [[4]]))
    run.give(in_rust_mode(["c", "a", "b"], [[1], [7], [8]], [None, None, sent.finished_reasons[1]]))
    run.server.wait(2)
    assert [received[2] for received in run.server.received] == [{}, {2: 0.25}], "not with a row before the last"


def test_an_abort_is_a_row_behind_the_earlier_ones(run):
    run.server.push_abort(AbortReq("a", weight_versions=["v"]), Request())
    sent = run.take()
    assert (sent.rids, sent.output_ids, sent.completion_tokens) == (["a"], [[]], [2])
    assert sent.finished_reasons == [{"type": "abort", "message": "Abort in waiting queue"}]
    assert run.server.received == []
    run.give(sent)
    kind, abort, request = run.server.wait(1)
    assert (kind, abort.rid, abort.finished_reason, abort.weight_versions) == ("abort", "a", sent.finished_reasons[0], ["v"])
    assert (len(request.origin_input_ids), request.cached_tokens, request.reasoning_tokens) == (3, 1, 0)


def test_an_abort_that_was_joined_with_tokens_keeps_the_tokens(run):
    run.server.push_abort(AbortReq("a", {"type": "abort", "message": "why"}), Request())
    sent = run.take()
    sent.output_ids = sent.decode_ids = [[7]]
    run.give(sent)
    kind, batch, _ = run.server.wait(1)
    assert (kind, batch.output_ids, batch.finished_reasons) == ("generation", [array("q", [7])], [{"type": "abort", "message": "why"}])


def test_a_health_check_is_acknowledged_only_when_a_batch_has_returned(run):
    run.server.push_health_ack()
    run.server.push_health_ack()
    probes = [run.take(), run.take()]
    assert [probe.rids for probe in probes] == [[], []]
    assert run.server.received == []
    for batch in (*probes, in_rust_mode(["a"], [[7]])):
        run.give(batch)
    run.server.wait(2)
    assert [received[0] for received in run.server.received] == ["health", "generation"], "one acknowledgement answers all checks"


def test_finished_requests_whose_last_row_does_not_return_are_forgotten(run):
    for number in range(FINISHED_MAX + 10):
        run.detour._remember(str(number), 0.5)
    assert len(run.detour._finished) == FINISHED_MAX and "9" not in run.detour._finished


def test_aborts_of_afterbay_join_the_requests_in_bounded_numbers(run):
    run.abort("not an abort")
    for number in range(ABORTS_MAX + 1):
        run.abort(AbortReq(str(number)))
    found, turns = ["a request"], 0
    while len(found) < ABORTS_MAX + 2 and turns < 1_000_000:
        before, turns = len(found), turns + 1
        assert HOOKS["drain"](found, run.server, 256) is found
        assert len(found) - before <= ABORTS_MAX
    assert [abort.rid for abort in found[1:]] == [str(number) for number in range(ABORTS_MAX + 1)]


def test_a_message_that_cannot_be_read_ends_the_process_and_is_not_given_to_the_next(run):
    run.give(b"garbage")
    run.detour._thread.join(10)
    assert (run.ended, run.count()) == ([True], 1)


def test_a_server_that_cannot_take_a_batch_ends_the_process(run):
    def fails(*_args):
        raise AssertionError("extras column")

    run.server._record = fails
    run.give(in_rust_mode(["a"], [[7]]))
    run.detour._thread.join(10)
    assert run.ended == [True]


class Scheduler:
    is_generation = True

    def __init__(self, context, tmp_path, **args):
        socket = context.socket(zmq.PUSH)
        socket.connect(f"ipc://{tmp_path}/detokenizer")
        self.ipc_channels = types.SimpleNamespace(send_to_detokenizer=SenderWrapper(socket), recv_from_tokenizer=None)
        self.server_args = types.SimpleNamespace(**{"dp_size": 1, "model_path": "/m", **args})


@pytest.fixture
def started(io_struct, fake_modules, tmp_path, monkeypatch):
    """Launches a server through the hooks."""
    monkeypatch.setattr(detour_module, "_end_process", lambda: None)
    context, detours = zmq.Context(), []

    def get_zmq_socket(context, kind, endpoint, bind):
        assert bind
        socket = context.socket(kind)
        socket.bind(endpoint)
        return socket

    fake_modules("sglang.srt.utils.network", get_zmq_socket=get_zmq_socket)
    settings = Settings(f"ipc://{tmp_path}/in", f"{tmp_path}/run/r-{{dp_rank}}.json", str(tmp_path / "credit"), rust_server=True)
    hooks = {target.rpartition(".")[2]: hook for target, _, hook in rust_server.hooks(settings)}
    ports = types.SimpleNamespace(tokenizer_ipc_name="ipc:///t", detokenizer_ipc_name="ipc:///d", instance_id="0123")

    def launch(cls=RustServer, **changes):
        scheduler = Scheduler(context, tmp_path, **changes.pop("args", {}))
        vars(scheduler).update(changes)
        hooks["init_ipc_channels"](None, scheduler, ports)
        detours.append(hooks["launch"](lambda cls, _scheduler: cls(), cls, scheduler)._afterbay_detour)
        return json.loads((tmp_path / "run/r-0.json").read_text())

    yield launch
    for detour in detours:
        back = context.socket(zmq.PUSH)
        back.connect(f"ipc://{tmp_path}/run/r-0.json.rust-server")
        back.send(b"the end of this test")
        detour._thread.join(10)
        detour._page.close()
    context.destroy(linger=0)


def test_the_rendezvous_file_names_the_socket_and_the_page_before_anything_is_sent(started, tmp_path):
    found = started()
    back = f"{tmp_path}/run/r-0.json.rust-server"
    assert (found["mode"], found["down"], found["down_kind"]) == ("rust_server", f"ipc://{back}", "tokenizer")
    assert (found["ingress"], found["credit"], found["ipc_format"]) == (f"ipc://{tmp_path}/in", f"{tmp_path}/credit/tokenizer", "pickle")
    assert (found["text_ingress"], found["workers"]) == (None, []) and "no detokenizer" in found["text_none"]
    assert (tmp_path / "run/r-0.json.rust-server").is_socket()
    assert len((tmp_path / "credit/tokenizer").read_bytes()) == PAGE_BYTES


def another_class():
    return type("ServerOfAModel", (RustServer,), {})


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(is_generation=False), "an embedding model"),
        (dict(args={"dp_size": 2}), "with 2 DP ranks"),
        (dict(cls=another_class()), "of a class of its own, test_rust_server.ServerOfAModel"),
    ],
)
def test_a_server_whose_output_would_bypass_afterbay_is_refused(started, tmp_path, changes, words):
    with pytest.raises(RuntimeError, match=f"afterbay: cannot stand before a Rust server.*{words}.*Unset SGLANG_RUST_SERVER"):
        started(**changes)
    assert not (tmp_path / "run").exists()
