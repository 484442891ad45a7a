"""Several tokenizers: their names, their numbers, and that each process comes to the same ones."""
import os
import types

import pytest

from afterbay_sglang import detokenizer, readers, rendezvous, text, workers
from afterbay_sglang.settings import Settings
from test_ingress import PORTS, Context

SEVERAL = {"tokenizer_worker_num": 2, "model_path": "/m", "tokenizer_path": None}


@pytest.fixture(autouse=True)
def sglang(fake_modules, monkeypatch):
    """One whose HTTP workers can be told what to serve, and whose detokenizer loads plugins."""
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
    """As SGLang's constructor is about to make a worker; its ports and its page."""
    hook = next(hook for target, kind, hook in readers.hooks(asked) if (target.rsplit(".", 1)[1], kind) == ("__init__", "BEFORE"))
    worker, ports = TokenizerWorker(), types.SimpleNamespace(**{**PORTS, "tokenizer_ipc_name": "ipc:///tmp/of-its-own"})
    assert hook(worker, types.SimpleNamespace(**{**SEVERAL, **args}), ports) is None
    return ports.tokenizer_ipc_name, getattr(worker, readers._PAGE)


def test_both_files_name_each_tokenizer_and_its_page(tmp_path):
    named = [{"ipc": f"ipc://{tmp_path}/r.json.worker-{number}", "credit": f"{tmp_path}/c/tokenizer-{number}"} for number in range(2)]
    of_text = rendezvous.describe_text(facts(), settings(tmp_path))
    assert (of_text["workers"], of_text["down"], of_text["credit"]) == (named, "ipc:///real/tok", f"{tmp_path}/c/tokenizer")
    of_tokens = rendezvous.describe(facts(), "ipc:///a", settings(tmp_path))
    assert (of_tokens["workers"], of_tokens["text_ingress"]) == ([], "ipc:///t"), "its reader is the detokenizer"
    skips = rendezvous.describe(facts(skip_tokenizer_init=True), "ipc:///a", settings(tmp_path))
    assert (skips["workers"], skips["down"]) == (named, "ipc:///real/tok")
    ranks = rendezvous.describe(facts(skip_tokenizer_init=True, dp_size=2), "ipc:///a", settings(tmp_path, ingress="ipc:///a-{dp_rank}"))
    assert [worker["credit"] for worker in ranks["workers"]] == [None, None], "each counts what all ranks send"


def test_a_worker_takes_the_first_number_that_is_free_and_with_it_the_names_that_the_file_has(tmp_path):
    asked = settings(tmp_path)
    named = rendezvous.describe_text(facts(), asked)["workers"]
    (first, page), (second, kept) = started(asked), started(asked)
    assert [(first, page.path), (second, kept.path)] == [(worker["ipc"], worker["credit"]) for worker in named]
    page.close()
    again, page = started(asked)
    assert again == first and page.path == named[0]["credit"], "in the place of the one that is gone"


def test_one_too_many_is_left_to_sglangs_router(tmp_path, caplog):
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


def test_the_engines_own_tokenizer_beside_the_router_leaves_the_numbers_to_those_that_join(tmp_path):
    asked = settings(tmp_path)
    router = make_router(asked)
    ipc, page = started(asked)
    assert (ipc, page.path) == ("ipc:///tmp/of-its-own", f"{tmp_path}/c/tokenizer.{os.getpid()}")
    assert getattr(router, readers._PAGE).path == f"{tmp_path}/c/tokenizer"


def test_processes_that_the_router_starts_find_the_entry_point_that_loads_plugins_and_others_do_not(tmp_path):
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


def test_where_processes_that_join_an_engine_cannot_load_plugins_the_start_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_PLATFORM", "npu")
    asked = settings(tmp_path)
    assert started(asked)[0].endswith("worker-0"), "HTTP workers load them in another way"
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
def test_where_they_cannot_be_met_their_output_stays_direct_and_it_is_said_why(tmp_path, why, changed, args):
    asked = settings(tmp_path, **changed)
    planned, told = workers.planned(facts(**args), asked)
    assert planned == [] and why in told
    assert rendezvous.text_leg(facts(**args), asked) == (None, told)


def test_an_sglang_whose_workers_cannot_be_told_what_to_serve(tmp_path, fake_modules):
    fake_modules("sglang.srt.environ", envs=types.SimpleNamespace())
    assert "HTTP workers load no plugins" in workers.planned(facts(), settings(tmp_path))[1]
    assert started(settings(tmp_path))[0] == "ipc:///tmp/of-its-own"


def test_without_a_text_leg_a_worker_keeps_its_own_name(tmp_path):
    assert started(settings(tmp_path, text_ingress=None))[0] == "ipc:///tmp/of-its-own"
    assert started(settings(tmp_path, text_ingress=None), skip_tokenizer_init=True)[0] == f"ipc://{tmp_path}/r.json.worker-0"


def test_the_detokenizer_sends_whole_batches_as_before_one_tokenizer(tmp_path, fake_modules):
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


def test_http_workers_serve_the_application_that_loads_plugins_and_know_the_one_it_stands_for(tmp_path, monkeypatch):
    workers.load_in_http_workers(settings(tmp_path, credit=None))
    assert "SGLANG_HTTP_SERVER_APP_PATH" not in os.environ
    for before, served in ((None, "sglang.srt.entrypoints.http_server:app"), ("mine:app", "mine:app")):
        monkeypatch.delenv("AFTERBAY_HTTP_APP", raising=False)
        monkeypatch.setenv("SGLANG_HTTP_SERVER_APP_PATH", before) if before else monkeypatch.delenv("SGLANG_HTTP_SERVER_APP_PATH", raising=False)
        # As in the first process, and again in one that it starts.
        workers.load_in_http_workers(settings(tmp_path))
        workers.load_in_http_workers(settings(tmp_path))
        assert os.environ["SGLANG_HTTP_SERVER_APP_PATH"] == "afterbay_sglang.http_app:app"
        assert workers.served_app() == served
