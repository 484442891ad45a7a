"""Tests an EngineCore's sockets and the rendezvous file, with a fake vLLM."""
import json
import os
import queue
import sys
import threading
import types

import pytest

import afterbay_vllm
from afterbay_connector.settings import Refused
from afterbay_vllm import rendezvous, tool_calls


@pytest.fixture
def vllm(fake_vllm, monkeypatch, tmp_path, engine):
    """Registers the connector with these settings and starts an EngineCore as vLLM does: its input sockets, then its outputs."""

    def start(outputs=("ipc:///vllm/out",), **env):
        for name, value in env.items():
            monkeypatch.setenv(f"AFTERBAY_{name.upper()}", value)
        afterbay_vllm.register()
        core = fake_vllm.core = fake_vllm.EngineCoreProc()
        core.output_queue = queue.Queue()
        vars(core).update(vars(engine(outputs)))
        core.process_input_sockets(["ipc:///vllm/in"], None, b"\0\0", threading.Event())
        core.process_output_sockets(list(outputs), "ipc:///vllm/coordinator", 0)
        return {name: arguments for name, *arguments in fake_vllm.calls}

    return start


def test_outputs_go_to_afterbay_and_aborts_come_from_it(vllm):
    calls = vllm(ingress="ipc:///a", abort="ipc:///b")
    assert calls["outputs"] == [["ipc:///a"], "ipc:///vllm/coordinator", 0]
    assert calls["inputs"][:3] == [["ipc:///vllm/in", "ipc:///b"], None, b"\0\0"]


def test_each_api_server_has_a_stream_and_a_file(vllm, tmp_path):
    outputs = ("ipc:///vllm/out0", "ipc:///vllm/out1")
    calls = vllm(outputs, ingress="ipc:///a,ipc:///b", abort="ipc:///c,ipc:///d", rendezvous=f"{tmp_path}/r-{{client}}.json", credit="/c")
    assert calls["outputs"][0] == ["ipc:///a", "ipc:///b"]
    assert calls["inputs"][0] == ["ipc:///vllm/in", "ipc:///c", "ipc:///d"]
    files = [json.loads((tmp_path / f"r-{client}.json").read_text()) for client in (0, 1)]
    assert [(file["ingress"], file["down"], file["abort"], file["credit"]) for file in files] == [
        ("ipc:///a", "ipc:///vllm/out0", "ipc:///c", "/c/api-server-0"),
        ("ipc:///b", "ipc:///vllm/out1", "ipc:///d", "/c/api-server-1"),
    ]


def test_a_version_that_nobody_has_tried_starts_with_a_warning_of_what_was_found(vllm, monkeypatch, caplog):
    monkeypatch.setattr(rendezvous, "vllm_version", lambda: "0.99.0")
    vllm(ingress="ipc:///a")
    assert "vLLM 0.99.0 is newer than this connector" in caplog.text and "EngineCoreOutput has 3 fields" in caplog.text


def test_a_class_without_a_needed_field_stops_the_start_and_the_reason_names_the_field(vllm, monkeypatch):
    kind = type("EngineCoreOutput", (), {"__struct_encode_fields__": ("request_id", "token_ids", "finish_reason")})
    monkeypatch.setattr(sys.modules["vllm.v1.engine"], "EngineCoreOutput", kind)
    with pytest.raises(Refused, match="its class EngineCoreOutput has no new_token_ids"):
        vllm(ingress="ipc:///a")


def test_each_socket_to_afterbay_carries_the_introduction_first(vllm, fake_vllm):
    vllm(("ipc:///vllm/out0", "ipc:///vllm/out1"), ingress="ipc:///a,ipc:///b")
    assert [path for path, _ in fake_vllm.sent] == ["ipc:///a", "ipc:///b"], "not the coordinator's"
    content = json.loads(fake_vllm.sent[0][1])
    assert (content["engine"], content["version"], content["front_ends"]) == ("vllm", "0.32.0", 2)
    assert content["classes"]["EngineCoreOutput"] == [["request_id"], ["new_token_ids"], ["finish_reason"]]


@pytest.mark.parametrize("outputs, ingress", [(2, "ipc:///a"), (1, "ipc:///a,ipc:///b")])
def test_another_number_of_api_servers_stops_the_start(vllm, fake_vllm, outputs, ingress):
    with pytest.raises(Refused, match=rf"vLLM has {outputs} API servers .*afterbay vllm --api-servers {outputs} --"):
        vllm([f"ipc:///{number}" for number in range(outputs)], ingress=ingress)
    assert fake_vllm.calls == [], "no socket is made"


def test_frames_name_the_requests_that_ended_however_the_scheduler_is_made(fake_vllm, monkeypatch):
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    afterbay_vllm.register()
    fake_vllm.Scheduler("config", False, True)
    fake_vllm.Scheduler(vllm_config="config", include_finished_set=False)
    fake_vllm.Scheduler("config")
    assert fake_vllm.calls == [("scheduler", "config", True, True), ("scheduler", "config", True, False), ("scheduler", "config", True, False)]


def described(engine, version="0.32.0", down="ipc:///vllm/out", **env):
    from afterbay_vllm.settings import Settings

    settings = Settings.from_environment({"AFTERBAY_INGRESS": "ipc:///a", **{f"AFTERBAY_{name.upper()}": value for name, value in env.items()}})
    rendezvous.vllm_version, before = (lambda: version), rendezvous.vllm_version
    try:
        return rendezvous.describe(settings, engine, 0, down)
    finally:
        rendezvous.vllm_version = before


def test_the_file_names_what_afterbay_needs(fake_vllm, engine, tmp_path):
    file = described(engine(model=str(tmp_path), tokenizer=None), credit="/c", abort="ipc:///b")
    assert file.pop("written_unix_ns") > 0
    assert file.pop("introduction")["model"] == str(tmp_path)
    assert file == {
        "format": 1,
        "connector": afterbay_vllm.__version__,
        "engine": "vllm",
        "leg": "tokens",
        "version": "0.32.0",
        "pid": os.getppid(),
        "instance_id": "",
        "mode": "normal",
        "ingress": "ipc:///a",
        "down": "ipc:///vllm/out",
        "down_kind": "api_server",
        "client": 0,
        "credit": "/c/api-server-0",
        "credit_none": None,
        "joins_none": None,
        "single_calls": None,
        "ipc_format": "msgpack",
        "abort": "ipc:///b",
        "abort_none": None,
        "model_path": str(tmp_path),
        "tokenizer_path": str(tmp_path),
        "served_model_name": "m",
        "data_parallel_size": 1,
    }


def test_rows_of_tool_calls_stay_single_for_dynamos_front_end_in_every_process(fake_vllm, engine, fake_modules, monkeypatch):
    monkeypatch.setenv("AFTERBAY_TOOL_CALLS_PARSED_BY", "")
    fake_modules("dynamo")
    tool_calls.find_front_end()
    monkeypatch.delitem(sys.modules, "dynamo")
    assert described(engine())["single_calls"].startswith("Dynamo's front end parses tool calls")


def test_the_fields_are_exactly_those_of_the_readme(fake_vllm, engine):
    readme = os.path.join(os.path.dirname(rendezvous.__file__), "README.md")
    with open(readme, encoding="utf-8") as file:
        table = file.read().split("## Rendezvous file")[1].split("\n#")[0]
    named = [cell.strip("` ") for line in table.splitlines() if line.startswith("| `") for cell in line.split("|")[1].split(",")]
    assert sorted(named) == sorted(described(engine()))


def test_what_is_absent_has_a_reason(fake_vllm, engine, fake_modules):
    file = described(engine(), version="0.31.0")
    assert file["credit"] is None and file["credit_none"] == "AFTERBAY_CREDIT is not set"
    assert file["abort"] is None and file["abort_none"] == "AFTERBAY_ABORT is not set"
    assert "vLLM 0.31.0 takes tokens behind a stop string" in file["joins_none"]
    assert "may run on another node" in described(engine(), credit="/c", down="tcp://10.0.0.1:5555")["credit_none"]
    fake_modules("vllm.envs", VLLM_USE_RUST_FRONTEND=True)
    assert "the Rust front end loads no plugins" in described(engine(), credit="/c")["credit_none"]
