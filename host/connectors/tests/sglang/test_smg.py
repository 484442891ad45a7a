"""Tests SMG's mode with fakes of its plugin's classes and with real sockets."""
import json
import sys
import types

import pytest
import zmq

from conftest import SenderWrapper
from afterbay_connector.settings import Refused
from afterbay_sglang import ingress, smg
from afterbay_sglang.settings import Settings
from test_ingress import PORTS

MODULE = "smg_grpc_servicer.sglang.zmq_msgpack"


def struct(*names, defaults=()):
    return type("Struct", (), {"__struct_encode_fields__": names, "__struct_defaults__": defaults})


class MsgpackSendSocket:
    """SMG's sender: its socket comes with the handshake."""

    __module__ = MODULE

    def __init__(self):
        self.socket = None

    def attach(self, socket):
        self.socket = socket


class Run:
    """A scheduler with SMG's plugin: `start` runs its constructor with the hooks around."""

    def __init__(self, tmp_path, **settings):
        self.context, self.tmp_path = zmq.Context(), tmp_path
        self.smg, self.requests = self.bound(zmq.PULL, "smg-out"), self.bound(zmq.ROUTER, "smg-in")
        self.afterbay, self.aborts = self.bound(zmq.PULL, "in"), self.bound(zmq.DEALER, "abort")
        self.settings = Settings(f"ipc://{tmp_path}/in", str(tmp_path / "r.json"), None, abort=f"ipc://{tmp_path}/abort", **settings)
        self.sender = MsgpackSendSocket()
        self.scheduler = types.SimpleNamespace(
            ipc_channels=types.SimpleNamespace(send_to_detokenizer=self.sender, recv_from_tokenizer=None),
            server_args=types.SimpleNamespace(model_path="/m", tokenizer_path=None),
            recv_from_tokenizer=None,
        )

    def bound(self, kind, name):
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.RCVTIMEO, 10000)
        socket.bind(f"ipc://{self.tmp_path}/{name}")
        return socket

    def handshake(self):
        output, requests = self.context.socket(zmq.PUSH), self.context.socket(zmq.DEALER)
        output.setsockopt(zmq.SNDHWM, 0)
        output.connect(f"ipc://{self.tmp_path}/smg-out")
        requests.connect(f"ipc://{self.tmp_path}/smg-in")
        requests.send(b"ready")
        self.sender.attach(output)
        self.scheduler.recv_from_tokenizer = types.SimpleNamespace(socket=requests)

    def start(self, handshake=True):
        (_, _, after_sockets), (_, _, after_init) = ingress.hooks(self.settings)
        after_sockets(None, self.scheduler, types.SimpleNamespace(**PORTS))
        if handshake:
            self.handshake()
        after_init(None, self.scheduler)


@pytest.fixture
def run(fake_modules, tmp_path):
    fake_modules("sglang.srt.managers.io_struct")
    fields = ["rids", "output_ids", "finished_reasons"]
    fake_modules(MODULE, BatchTokenIDSlimOutput=struct(*fields), BatchEmbeddingSlimOutput=struct("rids", "embeddings", "finished_reasons"))
    runs = []

    def make(**settings):
        runs.append(Run(tmp_path, **settings))
        return runs[-1]

    yield make
    for made in runs:
        made.context.destroy(linger=0)


def test_frames_go_to_afterbay_after_the_introduction_and_smg_gets_none(run, tmp_path):
    made = run()
    made.start()
    made.sender.socket.send(b"frame", copy=False)
    introduced = json.loads(made.afterbay.recv())
    assert (introduced["engine"], sorted(introduced["classes"])) == ("smg", ["BatchEmbeddingSlimOutput", "BatchTokenIDSlimOutput"])
    assert made.afterbay.recv() == b"frame"
    assert not made.smg.poll(100)


def test_the_rendezvous_file_names_the_socket_that_smg_has_bound(run, tmp_path):
    made = run()
    made.start()
    written = json.loads((tmp_path / "r.json").read_text())
    assert (written["engine"], written["down"], written["down_kind"]) == ("smg", f"ipc://{tmp_path}/smg-out", "api_server")
    assert (written["credit"], written["credit_none"]) == (None, "SMG counts no frames")
    assert (written["abort"], written["abort_none"], written["text_ingress"]) == (f"ipc://{tmp_path}/abort", None, None)
    assert written["introduction"]["engine"] == "smg" and "some of its parsers" in written["single_calls"]


def test_the_scheduler_takes_requests_of_smg_and_aborts_of_afterbay(run):
    made = run()
    made.start()
    identity, ready = made.requests.recv_multipart()
    assert ready == b"ready"
    made.aborts.send_multipart([b"\x01", b"\x91\xa1a"])
    made.requests.send_multipart([identity, b"\x00", b"request"])
    socket = made.scheduler.recv_from_tokenizer.socket
    socket.setsockopt(zmq.RCVTIMEO, 10000)
    assert sorted(socket.recv_multipart() for _ in range(2)) == [[b"\x00", b"request"], [b"\x01", b"\x91\xa1a"]]


def test_a_sender_without_a_socket_after_the_start_stops_the_start(run):
    with pytest.raises(RuntimeError, match="SMG's sender has no socket"):
        run().start(handshake=False)


def test_a_class_without_a_needed_field_stops_the_start(run, monkeypatch):
    monkeypatch.setattr(sys.modules[MODULE], "BatchTokenIDSlimOutput", struct("rids", "output_ids"))
    with pytest.raises(Refused, match="its class BatchTokenIDSlimOutput has no finished_reasons"):
        run().start()


def test_a_launcher_for_another_engine_stops_the_start(run):
    with pytest.raises(RuntimeError, match="sends messages of smg, and Afterbay waits for those of sglang: start it with `afterbay smg -- COMMAND`"):
        run(engine="sglang").start()
    made = run(engine="smg")
    made.scheduler.ipc_channels.send_to_detokenizer = SenderWrapper(made.context.socket(zmq.PUSH))
    with pytest.raises(RuntimeError, match="sends messages of sglang"):
        made.start()
    run(engine="smg").start()


def test_a_rank_of_smg_that_sends_nothing_starts(run):
    made = run(engine="smg")
    made.scheduler.ipc_channels.send_to_detokenizer = SenderWrapper(None)
    made.start(handshake=False)


def test_only_the_sender_of_smgs_plugin_is_its_sender():
    assert smg.is_sender(MsgpackSendSocket()) and not smg.is_sender(SenderWrapper(None))
