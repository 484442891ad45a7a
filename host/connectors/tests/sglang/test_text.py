"""Tests the detokenizer's socket with the fakes of the scheduler's."""
import json
import types

import pytest

from afterbay_sglang import detokenizer as detokenizer_process, rendezvous, text
from afterbay_sglang.settings import Settings
from test_ingress import PORTS, Context, fakes  # noqa: F401  (fakes: for every test here)


@pytest.fixture(autouse=True)
def plugins_are_loaded(monkeypatch):
    monkeypatch.setattr(detokenizer_process, "loads_plugins", lambda: True)


def detokenizer():
    """A detokenizer after SGLang's constructor."""
    socket = Context().socket("PUSH")
    socket.options = {"SNDHWM": 0, "SNDBUF": 512, "LINGER": -1}
    socket.connect(PORTS["tokenizer_ipc_name"])
    return types.SimpleNamespace(send_to_tokenizer=socket, recv_from_scheduler=object())


def reroute(made, settings, **args):
    server_args = types.SimpleNamespace(model_path="/m", tokenizer_path=None, **args)
    (target, kind, hook), = text.hooks(settings)
    assert (target.rsplit(".", 2)[1:], kind) == (["DetokenizerManager", "__init__"], "AFTER")
    assert hook(None, made, server_args, types.SimpleNamespace(**PORTS)) is None, "the result of the original stays"


def settings(tmp_path):
    return Settings("ipc:///afterbay", str(tmp_path / "r.json"), "/c", "ipc:///text")


def test_its_output_goes_to_afterbay_with_the_same_socket_options(tmp_path):
    made = detokenizer()
    before, scheduler_side = made.send_to_tokenizer, made.recv_from_scheduler
    reroute(made, settings(tmp_path))
    assert made.send_to_tokenizer.connected == ["ipc:///text"]
    assert made.send_to_tokenizer.options == {"SNDHWM": 0, "SNDBUF": 512, "LINGER": -1}
    assert before.closed == 0 and made.recv_from_scheduler is scheduler_side
    written = json.loads((tmp_path / "r.json.text").read_text())
    assert (written["leg"], written["ingress"], written["down"]) == ("text", "ipc:///text", "ipc:///real/tok")
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.json.text"], "the scheduler writes its own file"


@pytest.mark.parametrize("args", [{"skip_tokenizer_init": True}, {"tokenizer_worker_num": 33}], ids=str)
def test_without_a_text_leg_nothing_changes_and_the_log_has_the_reason(tmp_path, caplog, args):
    caplog.set_level("INFO")
    made = detokenizer()
    if "tokenizer_worker_num" in args:
        del made.send_to_tokenizer
    before = dict(vars(made))
    reroute(made, settings(tmp_path), **args)
    assert vars(made) == before and list(tmp_path.iterdir()) == []
    assert "the detokenizer's output stays direct" in caplog.text


def test_an_unknown_detokenizer_stops_the_start(tmp_path):
    with pytest.raises(RuntimeError, match="no send_to_tokenizer; unset AFTERBAY_TEXT_INGRESS"):
        reroute(types.SimpleNamespace(), settings(tmp_path))
