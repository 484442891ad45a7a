"""Tests the names and numbers of several tokenizers, which are equal in every process."""
import os
import types

import pytest

from afterbay_sglang import detokenizer, readers, rendezvous, text, workers
from afterbay_sglang.settings import Settings
from test_ingress import PORTS, Context

SEVERAL = {"tokenizer_worker_num": 2, "model_path": "/m", "tokenizer_path": None}


@pytest.fixture(autouse=True)
def sglang(fake_modules, monkeypatch):
    """A fake SGLang whose HTTP workers' application can be chosen and whose detokenizer loads plugins."""
    fake_modules("sglang.srt.environ", envs=types.SimpleNamespace(SGLANG_HTTP_SERVER_APP_PATH=None))
    fake_modules("sglang.srt.managers.io_struct")
    monkeypatch.setattr(detokenizer, "loads_plugins", lambda: True)


def settings(tmp_path, **changed):
    asked = {"ingress": "ipc:///a", "rendezvous": str(tmp_path / "r.json"), "credit": str(tmp_path / "c"), "text_ingress": "ipc:///t", **changed}
    return Settings(**asked)


def facts(**args):
    return rendezvous.Facts.of(types.SimpleNamespace(server_args=types.SimpleNamespace(**{**SEVERAL, **args})), types.SimpleNamespace(**PORTS))


class TokenizerWorker:
    pass


def started(asked, **args):
    """Call the hook before a worker's constructor. Return the worker's endpoint and its page."""
    hook = next(hook for target, kind, hook in readers.hooks(asked) if (target.rsplit(".", 1)[1], kind) == ("__init__", "BEFORE"))
    worker, ports = TokenizerWorker(), types.SimpleNamespace(**{**PORTS, "tokenizer_ipc_name": "ipc:///tmp/of-its-own"})
    assert hook(worker, types.SimpleNamespace(**{**SEVERAL, **args}), ports) is None
    return ports.tokenizer_ipc_name, getattr(worker, readers._PAGE)


def test_both_files_name_each_tokenizer_and_its_page(tmp_path):
    named = [{"ipc": f"ipc://{tmp_path}/r.json.worker-{number}", "credit": f"{tmp_path}/c/tokenizer-{number}"} for number in range(2)]
    of_text = rendezvous.describe_text(facts(), settings(tmp_path))
    assert (of_text["workers"], of_text["down"], of_text["credit"]) == (named, "ipc:///real/tok", f"{tmp_path}/c/tokenizer")
    of_tokens = rendezvous.describe(facts(), "ipc:///a", settings(tmp_path))
    assert (of_tokens["workers"], of_tokens["text_ingress"]) == ([], "ipc:///t"), "the reader of tokens is the detokenizer"
    skips = rendezvous.describe(facts(skip_tokenizer_init=True), "ipc:///a", settings(tmp_path))
    assert (skips["workers"], skips["down"]) == (named, "ipc:///real/tok")
    ranks = rendezvous.describe(facts(skip_tokenizer_init=True, dp_size=2), "ipc:///a", settings(tmp_path, ingress="ipc:///a-{dp_rank}"))
    assert [worker["credit"] for worker in ranks["workers"]] == [None, None], "each worker counts the frames of all ranks"


def test_a_worker_takes_the_first_free_number_and_its_names(tmp_path):
    asked = settings(tmp_path)
    named = rendezvous.describe_text(facts(), asked)["workers"]
    (first, page), (second, kept) = started(asked), started(asked)
    assert [(first, page.path), (second, kept.path)] == [(worker["ipc"], worker["credit"]) for worker in named]
    page.close()
    again, page = started(asked)
    assert again == first and page.path == named[0]["credit"], "it replaces the closed one"


def test_a_further_worker_is_reached_through_sglangs_router(tmp_path, caplog):
    asked = settings(tmp_path)
    kept = [started(asked) for _ in range(2)]
    ipc, page = started(asked)
    assert ipc == "ipc:///tmp/of-its-own" and page.path == f"{tmp_path}/c/tokenizer.{os.getpid()}"
    assert "through SGLang's router" in caplog.text and len(kept) == 2


def make_router(asked):
    hook = next(hook for target, _, hook in readers.hooks(asked) if target.endswith("MultiTokenizerRouter.__init__"))
    router = types.SimpleNamespace()
    hook(router, types.SimpleNamespace(**SEVERAL), types.SimpleNamespace(**PORTS))
    return router


def test_the_engines_own_tokenizer_takes_no_number(tmp_path):
    asked = settings(tmp_path)
    router = make_router(asked)
    ipc, page = started(asked)
    assert (ipc, page.path) == ("ipc:///tmp/of-its-own", f"{tmp_path}/c/tokenizer.{os.getpid()}")
    assert getattr(router, readers._PAGE).path == f"{tmp_path}/c/tokenizer"


def test_only_processes_that_the_router_starts_find_the_entry_point(tmp_path):
    from importlib.metadata import entry_points

    def found():
        named = entry_points()
        named = named.select(group="sglang.srt.platforms") if hasattr(named, "select") else named.get("sglang.srt.platforms", [])
        return [(entry.name, entry.value) for entry in named if entry.value.startswith("afterbay")]

    assert found() == []
    router = make_router(settings(tmp_path))
    make_router(settings(tmp_path))
    assert found() == [("afterbay", "afterbay_sglang.attached:activate")]
    assert os.environ["PYTHONPATH"].split(os.pathsep).count(workers._ATTACHED_PATH) == 1
    del router


def test_the_start_is_refused_if_joining_processes_cannot_load_plugins(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_PLATFORM", "npu")
    asked = settings(tmp_path)
    assert started(asked)[0].endswith("worker-0"), "HTTP workers load plugins in another way"
    make_router(asked)
    with pytest.raises(SystemExit, match='SGLANG_PLATFORM "npu" is set.*--gateway-workers'):
        started(asked)


@pytest.mark.parametrize(
    "why, changed, args",
    [
        ("AFTERBAY_RENDEZVOUS and AFTERBAY_CREDIT must both be set", {"credit": None}, {}),
        ("AFTERBAY_RENDEZVOUS and AFTERBAY_CREDIT must both be set", {"rendezvous": None}, {}),
        ("Afterbay connects to at most 32 of them", {}, {"tokenizer_worker_num": 33}),
        ("they run on another node", {}, {"node_rank": 1}),
        ("r.json.worker-1 is over 107 bytes", {"rendezvous": "/" + "d" * 91 + "/r.json"}, {}),
    ],
)
def test_workers_that_cannot_be_reached_keep_direct_output_with_a_reason(tmp_path, why, changed, args):
    asked = settings(tmp_path, **changed)
    planned, reason = workers.planned(facts(**args), asked)
    assert planned == [] and why in reason
    assert rendezvous.text_leg(facts(**args), asked) == (None, reason)


def test_an_sglang_without_a_choice_of_the_application(tmp_path, fake_modules):
    fake_modules("sglang.srt.environ", envs=types.SimpleNamespace())
    assert "HTTP workers load no plugins" in workers.planned(facts(), settings(tmp_path))[1]
    assert started(settings(tmp_path))[0] == "ipc:///tmp/of-its-own"


def test_without_a_text_leg_a_worker_keeps_its_own_endpoint(tmp_path):
    assert started(settings(tmp_path, text_ingress=None))[0] == "ipc:///tmp/of-its-own"
    assert started(settings(tmp_path, text_ingress=None), skip_tokenizer_init=True)[0] == f"ipc://{tmp_path}/r.json.worker-0"


def test_the_detokenizer_sends_whole_batches_like_to_one_tokenizer(tmp_path, fake_modules):
    def get_zmq_socket(context, kind, endpoint, bind):
        socket = context.socket(kind)
        socket.connect(endpoint)
        assert not bind
        return socket

    fake_modules("sglang.srt.utils.network", get_zmq_socket=get_zmq_socket)
    made = types.SimpleNamespace(recv_from_scheduler=Context().socket("PULL"), event_loop="the loop of one tokenizer")
    text.reroute(settings(tmp_path), made, types.SimpleNamespace(**SEVERAL), types.SimpleNamespace(**PORTS))
    assert made.send_to_tokenizer.connected == ["ipc:///t"]
    assert made.multi_http_worker_event_loop == "the loop of one tokenizer"
    assert (tmp_path / "r.json.text").exists()


def test_http_workers_serve_our_application_and_know_the_original_one(monkeypatch):
    for before, served in ((None, "sglang.srt.entrypoints.http_server:app"), ("mine:app", "mine:app")):
        monkeypatch.delenv("AFTERBAY_HTTP_APP", raising=False)
        monkeypatch.setenv("SGLANG_HTTP_SERVER_APP_PATH", before) if before else monkeypatch.delenv("SGLANG_HTTP_SERVER_APP_PATH", raising=False)
        # Once in the first process, and again in one that it starts.
        workers.load_in_http_workers()
        workers.load_in_http_workers()
        assert os.environ["SGLANG_HTTP_SERVER_APP_PATH"] == "afterbay_sglang.http_app:app"
        assert workers.served_app() == served
