"""Tests the scheduler's socket with fakes of pyzmq's and SGLang's objects."""
import json
import os
import types

import pytest

from conftest import SenderWrapper
from afterbay_connector.settings import Refused
from afterbay_sglang import ingress, rendezvous
from afterbay_sglang.settings import Settings


class Socket:
    def __init__(self, context, kind):
        self.context, self.kind = context, kind
        self.options, self.connected, self.closed, self.sent = {}, [], None, []

    def getsockopt(self, option):
        return self.options[option]

    def setsockopt(self, option, value):
        self.options[option] = value

    def connect(self, endpoint):
        self.connected.append(endpoint)

    def send(self, message):
        self.sent.append(message)

    def close(self, linger=None):
        self.closed = linger


class Context:
    def __init__(self):
        self.made = []

    def socket(self, kind):
        self.made.append(Socket(self, kind))
        return self.made[-1]


PORTS = dict(
    tokenizer_ipc_name="ipc:///real/tok",
    detokenizer_ipc_name="ipc:///real/detok",
    scheduler_input_ipc_name="ipc:///real/sched",
    rpc_ipc_name="ipc:///real/rpc",
    metrics_ipc_name="ipc:///real/metrics",
    tokenizer_worker_ipc_name=None,
    instance_id="0123456789ab",
)


def scheduler(sends=True, channels=True, **args):
    """A scheduler after SGLang's init_ipc_channels, with one sender for batches and one for control messages."""
    context = Context()

    def sender(endpoint):
        if not sends:
            return SenderWrapper(None)
        socket = context.socket("PUSH")
        socket.options = {"SNDHWM": 0, "SNDBUF": 512, "LINGER": -1}
        socket.connect(endpoint)
        return SenderWrapper(socket)

    skip = args.get("skip_tokenizer_init", False)
    senders = types.SimpleNamespace(
        send_to_tokenizer=sender(PORTS["tokenizer_ipc_name"]),
        send_to_detokenizer=sender(PORTS["tokenizer_ipc_name" if skip else "detokenizer_ipc_name"]),
    )
    server_args = types.SimpleNamespace(model_path="/m", tokenizer_path=None, **args)
    made = types.SimpleNamespace(server_args=server_args, context=context)
    if channels:
        made.ipc_channels = senders
    else:
        vars(made).update(vars(senders))
    return made, senders


@pytest.fixture(autouse=True)
def fakes(fake_modules):
    fake_modules("zmq", PUSH="PUSH", SNDHWM="SNDHWM", SNDBUF="SNDBUF", LINGER="LINGER", IPV6="IPV6")
    fake_modules("sglang.srt.managers.io_struct")


@pytest.fixture(autouse=True)
def peers(monkeypatch):
    """The watched sockets, with what they tell of Afterbay."""
    made = []

    def peer(socket, _logger, changed, rendezvous):
        assert socket.connected == [], "the first connection is seen"
        made.append((socket, changed, rendezvous))

    monkeypatch.setattr(ingress, "Peer", peer)
    return made


def reroute(made, ingress_name="ipc:///afterbay", rendezvous_file=None):
    ingress.reroute(Settings(ingress_name, rendezvous_file, None), made, types.SimpleNamespace(**PORTS))


@pytest.mark.parametrize("node, written", [(0, False), (1, True)])
def test_a_rank_that_sends_nothing_says_so_if_it_is_on_another_node(tmp_path, node, written):
    made, senders = scheduler(sends=False, node_rank=node)
    assert ingress.reroute(Settings("ipc:///a", f"{tmp_path}/r-{{dp_rank}}.json", None), made, types.SimpleNamespace(**PORTS)) == (senders.send_to_detokenizer, None)
    assert [path.name for path in tmp_path.iterdir()] == ["r-0.json.silent"] * written
    if written:
        silent = json.loads((tmp_path / "r-0.json.silent").read_text())
        assert silent["pid"] == os.getpid() and silent["why"].startswith("this is node 1 of SGLang")


@pytest.mark.parametrize("channels", [True, False], ids=["ipc_channels (0.5.13 on)", "on the scheduler (0.5.11)"])
@pytest.mark.parametrize("skip", [False, True], ids=["normal", "skip_tokenizer_init"])
def test_batches_go_to_afterbay_and_control_messages_stay_direct(channels, skip):
    made, senders = scheduler(channels=channels, skip_tokenizer_init=skip)
    before = senders.send_to_detokenizer.socket
    reroute(made)
    assert senders.send_to_detokenizer.socket.connected == ["ipc:///afterbay"]
    assert before.closed == 0, "the socket to the real reader is closed and waits for nothing"
    assert senders.send_to_tokenizer.socket.connected == ["ipc:///real/tok"]
    assert senders.send_to_tokenizer.socket.closed is None


def test_the_new_socket_has_the_options_of_sglangs_own():
    made, senders = scheduler()
    reroute(made)
    assert senders.send_to_detokenizer.socket.options == {"SNDHWM": 0, "SNDBUF": 512, "LINGER": -1}


def test_an_ipv6_endpoint_enables_ipv6():
    made, senders = scheduler()
    reroute(made, "tcp://[::1]:5555")
    assert senders.send_to_detokenizer.socket.options["IPV6"] == 1


def test_a_rank_that_sends_nothing_stays_unchanged(tmp_path):
    made, senders = scheduler(sends=False)
    reroute(made, rendezvous_file=str(tmp_path / "r.json"))
    assert senders.send_to_detokenizer.socket is None
    assert made.context.made == [] and list(tmp_path.iterdir()) == []


def test_each_dp_rank_has_its_own_names(tmp_path):
    made, senders = scheduler(dp_size=4)
    made.ps = types.SimpleNamespace(dp_rank=2)
    reroute(made, "ipc:///afterbay-{dp_rank}", str(tmp_path / "r-{dp_rank}.json"))
    assert senders.send_to_detokenizer.socket.connected == ["ipc:///afterbay-2"]
    written = json.loads((tmp_path / "r-2.json").read_text())
    assert (written["ingress"], written["dp_rank"], written["dp_size"]) == ("ipc:///afterbay-2", 2, 4)


def test_dp_ranks_that_share_a_stream_give_a_warning(caplog):
    made, _ = scheduler(dp_size=2)
    reroute(made)
    assert "2 DP ranks share one stream, ipc:///afterbay" in caplog.text


def test_the_file_appears_after_the_socket_is_rerouted(tmp_path, monkeypatch):
    made, senders = scheduler()
    seen = []
    monkeypatch.setattr(ingress, "write", lambda path, content: seen.append((path, content["down"], senders.send_to_detokenizer.socket.connected)))
    reroute(made, rendezvous_file=str(tmp_path / "r.json"))
    assert seen == [(str(tmp_path / "r.json"), "ipc:///real/detok", ["ipc:///afterbay"])]


def test_a_busy_scheduler_answers_no_health_check_while_afterbay_is_away(peers, tmp_path):
    class Scheduler(types.SimpleNamespace):
        def maybe_send_health_check_signal(self):
            return "sent"

    made, senders = scheduler()
    made = Scheduler(**vars(made))
    reroute(made, rendezvous_file=str(tmp_path / "r.json"))
    [(socket, changed, rendezvous)] = peers
    assert (socket, rendezvous) == (senders.send_to_detokenizer.socket, str(tmp_path / "r.json"))
    for _ in range(2):
        changed(False)
        assert made.maybe_send_health_check_signal() is None
        changed(True)
        assert made.maybe_send_health_check_signal() == "sent"
    changed(True)


def test_a_scheduler_without_health_checks_is_told(caplog):
    made, _ = scheduler()
    reroute(made)
    assert "has no maybe_send_health_check_signal" in caplog.text


def test_an_unknown_scheduler_stops_the_start():
    with pytest.raises(RuntimeError, match="no send_to_detokenizer.socket"):
        reroute(types.SimpleNamespace())


class OtherSender:
    """The sender of another plugin, with a socket or none."""

    __module__ = "other_plugin.wire"

    def __init__(self, socket=None):
        self.socket = socket


def hooks():
    (_, _, after_sockets), (target, kind, after_init) = ingress.hooks(Settings("ipc:///afterbay", None, None))
    assert (target.rpartition(".")[2], kind) == ("__init__", "AFTER")
    return lambda made: after_sockets(None, made, types.SimpleNamespace(**PORTS)), lambda made: after_init(None, made, "server_args")


@pytest.mark.parametrize("sends", [True, False])
def test_a_sender_of_another_plugin_stops_the_start_and_the_reason_names_it(sends):
    made, senders = scheduler()
    senders.send_to_detokenizer = OtherSender(senders.send_to_detokenizer.socket if sends else None)
    after_sockets, _ = hooks()
    with pytest.raises(RuntimeError, match="goes through other_plugin.wire.OtherSender, which another plugin put in the place"):
        after_sockets(made)


def test_a_sender_that_is_replaced_later_stops_the_start():
    for replace in [
        lambda made, senders: setattr(senders, "send_to_detokenizer", OtherSender()),
        lambda made, senders: setattr(senders, "send_to_detokenizer", SenderWrapper(senders.send_to_detokenizer.socket)),
        lambda made, senders: setattr(senders.send_to_detokenizer, "socket", made.context.socket("PUSH")),
    ]:
        made, senders = scheduler()
        after_sockets, after_init = hooks()
        after_sockets(made)
        after_init(made)
        replace(made, senders)
        with pytest.raises(RuntimeError, match="past Afterbay. Leave out .* plugin"):
            after_init(made)


def test_a_scheduler_that_made_its_sockets_without_the_hook_stops_the_start():
    _, after_init = hooks()
    with pytest.raises(RuntimeError, match="was replaced"):
        after_init(scheduler()[0])


def test_a_rank_that_sends_nothing_starts():
    made, _ = scheduler(sends=False)
    for hook in hooks():
        hook(made)


def test_the_hook_keeps_the_result_of_the_original():
    (target, kind, hook), _ = ingress.hooks(Settings("ipc:///afterbay", None, None))
    made, _ = scheduler()
    assert kind == "AFTER" and target.endswith("Scheduler.init_ipc_channels")
    assert hook(None, made, types.SimpleNamespace(**PORTS)) is None


def test_a_release_that_nobody_has_tried_starts_with_a_warning_of_what_was_found(caplog):
    content = {"engine": "sglang", "version": "0.6.1", "classes": {"BatchTokenIDOutput": [["rids"], ["finished_reasons"], ["new"]]}}
    ingress.check_release(content)
    assert "SGLang 0.6.1 is newer than this connector" in caplog.text and "BatchTokenIDOutput has 3 fields" in caplog.text


def test_a_message_without_a_needed_field_stops_the_start_and_the_reason_names_the_field():
    content = {"engine": "sglang", "version": "0.6.1", "classes": {"BatchTokenIDOutput": [["request_ids"], ["finished_reasons"]]}}
    with pytest.raises(Refused, match="its class BatchTokenIDOutput has no rids, which Afterbay reads; found request_ids, finished_reasons"):
        ingress.check_release(content)
