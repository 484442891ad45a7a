"""Plugins on the real vLLM, over HTTP: the client sees each verdict, and `afterbay journal show` tells it.

One server for all tests; it starts in about a minute. The client chooses the tokens (`allowed_token_ids`, a choice), so that each
request meets the verdict that it is for. Skipped without vLLM, without the binary (`cargo build -p afterbay`), and without the
guests of the tests (`cargo test -p afterbay-runtime` builds them).
"""
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

import pytest

import tiny_model

ROOT = pathlib.Path(__file__).resolve().parents[4]
BINARY = pathlib.Path(os.environ.get("AFTERBAY_BINARY", ROOT / "target/debug/afterbay"))
GUESTS = ROOT / "target/tmp/guests/wasm32-wasip2/release/examples"
# Seconds until vLLM is ready: 60 on an idle machine, and many times as long on a busy one.
START_MAX = 900
# The token ids that the guest `holds` obeys (tests/src/holds/ids.rs).
HOLD, DROP, FINISH = 101, 104, 105
# A token id that the guest lets pass.
PASS = 110

STREAM = """\
[[stream]]
name   = "vllm"
engine = "vllm"
listen = "ipc://{dir}/ingress"

[stream.abort]
push = "ipc://{dir}/abort"

[[stream.sink]]
name      = "api-server"
tokenizer = "{dir}/model"

[journal]
dir = "{dir}/journal"

[admin]
listen = "unix:{dir}/admin.sock"
"""

PLUGIN = """
[[stream.plugin]]
name      = "{name}"
component = "{component}"
settings  = {{ {settings} }}
limits    = {{ deadline = "10s" }}
"""


class Server:
    """Afterbay and vLLM in a directory of their own."""

    def __init__(self, directory, python):
        self.directory, self.python = directory, python
        self.config, self.log = directory / "afterbay.toml", directory / "afterbay.log"
        self.afterbay = self.vllm = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def write(self, *plugins):
        components = (PLUGIN.format(name=name, component=component, settings=settings) for name, component, settings in plugins)
        # A plugin belongs to the stream before it.
        head, stream, rest = STREAM.format(dir=self.directory).partition("[journal]")
        self.config.write_text(head + "".join(components) + "\n" + stream + rest)

    def start(self):
        tiny_model.write(self.directory / "model")
        subprocess.run([BINARY, "connector", self.directory / "connector"], check=True, stdout=subprocess.DEVNULL)
        rendezvous = self.directory / "rendezvous-{client}.json"
        command = [BINARY, "run", "--config", self.config, "--rendezvous", rendezvous]
        self.afterbay = subprocess.Popen(command, stderr=open(self.log, "w"))
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("AFTERBAY_", "VLLM_"))}
        environment.update(
            PYTHONPATH=str(self.directory / "connector"),
            AFTERBAY_INGRESS=f"ipc://{self.directory}/ingress",
            AFTERBAY_ABORT=f"ipc://{self.directory}/abort",
            AFTERBAY_RENDEZVOUS=str(rendezvous),
            AFTERBAY_CREDIT=str(self.directory / "credit"),
            HF_HUB_OFFLINE="1",
            OMP_NUM_THREADS="1",
            VLLM_NO_USAGE_STATS="1",
            VLLM_TARGET_DEVICE="cpu",
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_CPU_OMP_THREADS_BIND="nobind",
        )
        command = [self.python, "-m", "vllm.entrypoints.cli.main", "serve", self.directory / "model", "--served-model-name", "tiny"]
        command += ["--load-format", "dummy", "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "16"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--seed", "1"]
        log = open(self.directory / "vllm.log", "w")
        self.vllm = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + START_MAX
        while not self.is_ready():
            assert self.vllm.poll() is None and time.monotonic() < end, (self.directory / "vllm.log").read_text()[-3000:]
            time.sleep(0.5)

    def is_ready(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self):
        if self.vllm:
            self.vllm.terminate()
            try:
                self.vllm.wait(30)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(self.vllm.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.vllm.wait()
        if self.afterbay:
            self.afterbay.terminate()
            self.afterbay.wait(30)

    def plugins(self, *plugins):
        """Puts these plugins in the place of all others."""
        self.write(*plugins)
        done = subprocess.run([BINARY, "reload", "--config", self.config], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr + self.log.read_text()[-2000:]

    def stream(self, rid, max_tokens, **more):
        """The chunks of a streamed completion: the choices, and the usage."""
        body = dict(model="tiny", prompt=tiny_model.ids("go: "), max_tokens=max_tokens, temperature=1, ignore_eos=True, stream=True)
        body.update(return_token_ids=True, stream_options={"include_usage": True}, **more)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json", "x-request-id": rid})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        choices, usage = [], None
        for line in answer:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                choices += chunk["choices"]
                usage = chunk.get("usage") or usage
        connection.close()
        return choices, usage

    def show(self, rid):
        """What the journal says of a request, once the engine has ended it."""
        command = [BINARY, "journal", "show", f"cmpl-{rid}", "--from", self.directory / "journal", "--json"]
        end = time.monotonic() + 20
        while True:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            shown = json.loads(done.stdout) if done.returncode == 0 else {}
            if shown.get("state") == "finished":
                return shown
            assert time.monotonic() < end, done.stderr + done.stdout + self.log.read_text()[-2000:]
            time.sleep(0.2)


def text(choices):
    return "".join(choice["text"] for choice in choices)


def ids(choices):
    return [id for choice in choices for id in choice.get("token_ids") or ()]


def end(choices):
    return choices[-1]["finish_reason"], choices[-1].get("stop_reason")


def verdicts(shown):
    return [(action["plugin"], action["verdict"]) for row in shown["rows_seen"] for action in row["actions"]]


@pytest.fixture(scope="module")
def server(real_vllm, tmp_path_factory):
    for needed in (BINARY, GUESTS / "holds.wasm", GUESTS / "judges.wasm"):
        if not needed.exists():
            pytest.skip(f"{needed} is not built")
    server = Server(tmp_path_factory.mktemp("plugins"), real_vllm.python)
    server.write()
    try:
        server.start()
        yield server
    finally:
        server.stop()


def test_a_guard_finishes_a_loop_and_the_engine_gets_an_abort(server):
    server.plugins(("stop-loop", "builtin:stop-loop", ""))
    choices, usage = server.stream("loop", 2000, allowed_token_ids=tiny_model.ids("!"))
    assert end(choices) == ("stop", "stop-loop")
    assert set(text(choices)) == {"!"} and 288 <= len(ids(choices)) == usage["completion_tokens"] < 2000
    shown = server.show("loop")
    assert (shown["ended"]["by"], shown["ended"]["plugin"], shown["ended"]["scheduler_said"]) == ("plugin", "stop-loop", "abort")
    assert shown["tokens_forwarded"] == usage["completion_tokens"]


def test_a_guard_masks_a_word_that_it_held_back_token_by_token(server):
    server.plugins(("private", "builtin:match-text", 'words = ["secret"]'))
    choices, usage = server.stream("mask", 60, ignore_eos=False, structured_outputs={"choice": ["my secret is safe"]})
    assert text(choices) == "my [masked] is safe"
    shown = server.show("mask")
    assert {("private", "hold"), ("private", "replace")} <= set(verdicts(shown)), shown
    assert shown["tokens_forwarded"] == usage["completion_tokens"] != shown["tokens_received"]


def test_a_held_request_arrives_as_one_chunk(server):
    server.plugins(("holds", GUESTS / "holds.wasm", "millis = 30000"))
    choices, usage = server.stream("hold", 6, allowed_token_ids=[HOLD])
    assert [ids([choice]) for choice in choices if choice.get("token_ids")] == [[HOLD] * 6]
    assert (end(choices)[0], usage["completion_tokens"]) == ("length", 6)
    assert verdicts(server.show("hold"))[:5] == [("holds", "hold")] * 5


def test_dropped_tokens_do_not_arrive(server):
    server.plugins(("holds", GUESTS / "holds.wasm", "millis = 30000"))
    choices, usage = server.stream("drop", 20, allowed_token_ids=[DROP, PASS], seed=1)
    shown = server.show("drop")
    assert set(ids(choices)) == {PASS} and len(ids(choices)) == usage["completion_tokens"] == shown["tokens_forwarded"] < 20
    assert end(choices)[0] == "length"
    assert verdicts(shown) == [("holds", "drop")] * shown["tokens_dropped"] and shown["tokens_received"] == 20
    # vLLM sends no chunk of a request that has no token at all, not even one with the finish reason.
    choices, usage = server.stream("drop-all", 5, allowed_token_ids=[DROP])
    assert (choices, usage["completion_tokens"]) == ([], 0)
    assert server.show("drop-all")["tokens_dropped"] == 5


def test_a_guest_finishes_with_its_own_reason(server):
    server.plugins(("holds", GUESTS / "holds.wasm", "millis = 30000"))
    choices, _ = server.stream("finish", 500, allowed_token_ids=[FINISH])
    assert (ids(choices), end(choices)) == ([FINISH], ("stop", "as requested"))
    assert server.show("finish")["ended"]["plugin"] == "holds"


@pytest.mark.parametrize("action, reason", [("length", "length"), ("abort", "abort")])
def test_a_guest_ends_by_length_or_abort(server, action, reason):
    server.plugins(("judges", GUESTS / "judges.wasm", f'action = "{action}"'))
    choices, _ = server.stream(action, 500)
    assert (len(ids(choices)), end(choices)[0]) == (1, reason)
    shown = server.show(action)
    assert (shown["ended"]["by"], shown["ended"]["reader_got"]["finish_reason"]) == ("plugin", reason)


def test_a_note_changes_nothing_for_the_client(server):
    server.plugins(("judges", GUESTS / "judges.wasm", 'action = "annotate"'))
    choices, usage = server.stream("note", 4)
    assert (len(ids(choices)), end(choices)[0], usage["completion_tokens"]) == (4, "length", 4)
    assert verdicts(server.show("note")) == [("judges", "annotate")] * 4


def test_a_client_that_leaves_ends_its_request_at_that_time(server):
    server.plugins()
    body = dict(model="tiny", prompt=tiny_model.ids("go: "), max_tokens=1900, temperature=1, ignore_eos=True, stream=True)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json", "x-request-id": "gone"})
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    answer.close()
    connection.close()
    shown = server.show("gone")
    assert (shown["ended"]["by"], shown["ended"]["scheduler_said"], shown["ended"]["reader_got"]) == ("client", "abort", None)
    assert 0 < shown["tokens_received"] < 1900


def test_verify_recounts_every_request(server):
    command = [BINARY, "journal", "verify", "--from", server.directory / "journal", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["recounted"]["requests"] > 0
