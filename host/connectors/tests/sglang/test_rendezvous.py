"""Tests the fields of the rendezvous file and its atomic writes."""

import os
import sys
import types

import pytest

from afterbay_sglang import detokenizer, rendezvous, tool_calls, wire
from afterbay_sglang.settings import Settings
from test_ingress import PORTS


@pytest.fixture(autouse=True)
def io_struct(fake_modules):
    return fake_modules("sglang.srt.managers.io_struct")


@pytest.fixture
def detokenizer_with_plugins(monkeypatch):
    monkeypatch.setattr(detokenizer, "loads_plugins", lambda: True)


def facts(rank=0, **args):
    args = {"model_path": "/models/m", "tokenizer_path": None, "served_model_name": "m", **args}
    scheduler = types.SimpleNamespace(ps=types.SimpleNamespace(dp_rank=rank), server_args=types.SimpleNamespace(**args))
    return rendezvous.Facts.of(scheduler, types.SimpleNamespace(**PORTS))


def describe(ingress="ipc:///a", credit="/dev/shm/c", rank=0, **args):
    return rendezvous.describe(facts(rank, **args), ingress, Settings(ingress, "/r", credit))


def test_the_fields_are_exactly_those_of_the_readme(detokenizer_with_plugins):
    readme = os.path.join(os.path.dirname(rendezvous.__file__), "README.md")
    with open(readme, encoding="utf-8") as file:
        table = file.read().split("### Rendezvous file")[1].split("\n#")[0]
    named = [cell.strip("` ") for line in table.splitlines() if line.startswith("| `") for cell in line.split("|")[1].split(",")]
    assert sorted(named) == sorted(describe())


def test_normal_mode_names_the_detokenizer(detokenizer_with_plugins):
    written = describe()
    assert (written["mode"], written["down_kind"], written["down"]) == ("normal", "detokenizer", "ipc:///real/detok")
    assert written["credit"] == "/dev/shm/c/detokenizer" and written["credit_none"] is None
    assert written["tokenizer_path"] == "/models/m", "SGLang's default is the model's path"
    assert {name: written[name] for name in PORTS} == PORTS


def test_a_front_end_that_parses_tool_calls_itself_is_named_in_every_process(monkeypatch):
    assert describe(skip_tokenizer_init=True)["single_calls"] is None
    monkeypatch.setenv("AFTERBAY_TOOL_CALLS_PARSED_BY", "")
    monkeypatch.setitem(sys.modules, "dynamo", types.ModuleType("dynamo"))
    tool_calls.find_front_end()
    monkeypatch.delitem(sys.modules, "dynamo")
    assert "Dynamo's front end parses tool calls" in describe(skip_tokenizer_init=True)["single_calls"]
    monkeypatch.setenv("AFTERBAY_TOOL_CALLS_PARSED_BY", "")
    rust = rendezvous.describe(facts(), "ipc:///a", Settings("ipc:///a", "/r", "/c", rust_server=True))
    assert "SGLang's Rust server parses tool calls" in rust["single_calls"]


def test_skip_tokenizer_init_names_the_tokenizer():
    written = describe(skip_tokenizer_init=True)
    assert (written["mode"], written["down_kind"], written["down"]) == ("skip_tokenizer_init", "tokenizer", "ipc:///real/tok")
    assert written["credit"] == "/dev/shm/c/tokenizer"


@pytest.mark.parametrize(
    "why, credit, ingress, args",
    [
        ("AFTERBAY_CREDIT is not set", None, "ipc:///a", {}),
        ("2 detokenizers are behind a router", "/c", "ipc:///a", {"detokenizer_worker_num": 2}),
        ("2 DP ranks, each with its own stream", "/c", "ipc:///a-{dp_rank}", {"dp_size": 2}),
        ("the reader runs on another node", "/c", "ipc:///a", {"node_rank": 1}),
    ],
)
def test_a_count_of_other_frames_is_not_offered(detokenizer_with_plugins, why, credit, ingress, args):
    written = describe(ingress, credit, **args)
    assert written["credit"] is None and why in written["credit_none"]


def test_a_detokenizer_without_plugins_offers_no_count(monkeypatch):
    monkeypatch.setattr(detokenizer, "loads_plugins", lambda: False)
    assert "loads no plugins" in describe()["credit_none"]


def test_ranks_that_share_a_stream_share_the_count(detokenizer_with_plugins):
    assert describe(dp_size=2, rank=1)["credit"] == "/dev/shm/c/detokenizer"


def test_several_tokenizers_behind_their_router_have_one_count():
    assert describe(skip_tokenizer_init=True, tokenizer_worker_num=2)["credit"] == "/dev/shm/c/tokenizer"


def test_the_allow_list_of_tcp_peers_is_written(monkeypatch, detokenizer_with_plugins):
    assert describe()["peer_allow_list"] is None
    monkeypatch.setenv("SGLANG_ZMQ_ALLOWED_PEERS", "10.0.0.1, 10.0.0.2")
    assert describe()["peer_allow_list"] == ["10.0.0.1", "10.0.0.2"]


def text(rank=0, **args):
    return describe_with(Settings("ipc:///a-{dp_rank}", "/r-{dp_rank}", "/c", "ipc:///t"), rank, **args)


def describe_with(settings, rank=0, **args):
    return rendezvous.describe(facts(rank, **args), "ipc:///a", settings)


def test_a_scheduler_names_the_endpoint_of_its_detokenizers_output(detokenizer_with_plugins):
    written = text(rank=1, dp_size=2)
    assert (written["leg"], written["text_ingress"], written["text_none"]) == ("tokens", "ipc:///t", None)


@pytest.mark.parametrize(
    "why, settings, args",
    [
        ("AFTERBAY_TEXT_INGRESS is not set", Settings("ipc:///a", "/r", "/c"), {}),
        ("the detokenizer has nothing to do", None, {"skip_tokenizer_init": True}),
        ("with 2 tokenizers (--tokenizer-worker-num)", Settings("ipc:///a", "/r", None, "ipc:///t"), {"tokenizer_worker_num": 2}),
        ("the detokenizer runs on another node", None, {"node_rank": 1}),
    ],
)
def test_a_missing_text_leg_has_a_reason(detokenizer_with_plugins, why, settings, args):
    written = describe_with(settings or Settings("ipc:///a", "/r", "/c", "ipc:///t"), **args)
    assert written["text_ingress"] is None and why in written["text_none"]


def test_a_detokenizer_without_plugins_has_no_text_leg(monkeypatch):
    monkeypatch.setattr(detokenizer, "loads_plugins", lambda: False)
    assert "loads no plugins" in text()["text_none"]


def test_a_text_leg_names_the_tokenizer_its_count_and_its_process(detokenizer_with_plugins):
    settings = Settings("ipc:///a-{dp_rank}", "/run/r-{dp_rank}.json", "/c", "ipc:///t")
    written = rendezvous.describe_text(facts(dp_size=2), settings)
    assert sorted(written) == sorted(describe()), "the fields of both files are the same"
    assert (written["leg"], written["ingress"], written["down"], written["down_kind"]) == ("text", "ipc:///t", "ipc:///real/tok", "tokenizer")
    assert (written["credit"], written["credit_none"], written["pid"]) == ("/c/tokenizer", None, os.getppid())
    assert rendezvous.text_file(settings) == "/run/r-0.json.text"
    without = rendezvous.describe_text(facts(), Settings("ipc:///a", "/r", None, "ipc:///t"))
    assert (without["credit"], without["credit_none"]) == (None, "AFTERBAY_CREDIT is not set")


def test_several_detokenizers_write_equal_files(detokenizer_with_plugins):
    settings = Settings("ipc:///a", "/r", "/c", "ipc:///t")
    made = []
    for worker in range(2):
        worker_facts = facts(detokenizer_worker_num=2)
        worker_facts.port_args.detokenizer_ipc_name = f"ipc:///worker-{worker}"
        made.append({**rendezvous.describe_text(worker_facts, settings), "written_unix_ns": 0})
    assert made[0] == made[1]
    assert made[0]["credit"] == "/c/tokenizer", "the router is before them, so that they send one stream"


@pytest.mark.parametrize("switch, told", [(True, "pickle"), (False, "msgpack"), (None, "pickle")])
def test_the_format_is_the_encoding_of_this_process(io_struct, switch, told):
    if switch is not None:
        io_struct._USE_PICKLE_IPC = switch
    assert wire.ipc_format() == told


def test_a_context_that_rejects_a_name_is_skipped(fake_modules):
    class Context:
        skip_tokenizer_init = True

        def __getattr__(self, name):
            raise RuntimeError(f"{name} is not published")

    fake_modules("sglang.srt.runtime_context", get_parallel=Context, get_serving=Context, get_model=Context)
    assert facts(rank=3, dp_size=4, skip_tokenizer_init=False).mode == "skip_tokenizer_init", "the published value has priority"
    assert facts(rank=3, dp_size=4).dp_rank == 3
