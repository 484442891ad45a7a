"""The environment of vLLM's connector, a fake vLLM, and the real vLLM if it is installed."""
import os
import pathlib
import subprocess
import sys
import types

import pytest

import afterbay_vllm

VARIABLES = ("AFTERBAY_INGRESS", "AFTERBAY_TEXT_INGRESS", "AFTERBAY_RENDEZVOUS", "AFTERBAY_CREDIT", "AFTERBAY_ABORT", "AFTERBAY_TENANT", "AFTERBAY_LEASE_MAX", "AFTERBAY_LEASE", "AFTERBAY_CLIENTS_KEY", "VLLM_PLUGINS", "VLLM_USE_RUST_FRONTEND")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(afterbay_vllm, "_registered", False)


@pytest.fixture
def fake_vllm(fake_modules, monkeypatch):
    """The functions of vLLM that the connector wraps. Each call is recorded with its arguments."""
    calls = []

    class EngineCore:
        def preprocess_add_request(self, request):
            calls.append(("request", request.request_id))
            if request.request_id == "bad":
                raise ValueError("bad request")
            return request, 3

        def abort_requests(self, request_ids):
            calls.append(("abort", list(request_ids)))

    class EngineCoreProc(EngineCore):
        def process_input_sockets(self, input_addresses, coord_input_address, identity, ready_event):
            calls.append(("inputs", input_addresses, coord_input_address, identity, ready_event))

        def process_output_sockets(self, output_paths, coord_output_path, engine_index):
            calls.append(("outputs", output_paths, coord_output_path, engine_index))
            core = sys.modules["vllm.v1.engine.core"]
            for path in [*output_paths, coord_output_path]:
                core.make_zmq_socket("ctx", path, "PUSH", linger=4000)

    class Scheduler:
        def __init__(self, vllm_config, include_finished_set=False, log_stats=False):
            calls.append(("scheduler", vllm_config, include_finished_set, log_stats))

        def _update_request_as_session(self, session, update):
            session.prompt_token_ids = session.prompt_token_ids + update

    class AsyncMPClient:
        def __init__(self, vllm_config, client_count=1, client_index=0):
            self.client_index = client_index
            self.decoder = types.SimpleNamespace(decode=lambda frames: frames)
            self.queue = []

        async def get_output_async(self):
            return self.queue.pop(0)

        def _send_input(self, request_type, request, engine=None):
            return self.send((request_type.name, request, engine))

    def make_zmq_socket(ctx, path, socket_type, bind=None):
        calls.append(("socket", ctx, path, socket_type, bind))
        return "socket"

    sent = []

    def make_core_socket(ctx, path, socket_type, bind=None, linger=None):
        return types.SimpleNamespace(send=lambda message: sent.append((path, message)))

    class AsyncLLM:
        async def check_health(self):
            return None

        async def abort(self, request_id, internal=False):
            """As vLLM's, which makes ids of the engine of a client's ids."""
            ids = [request_id] if isinstance(request_id, str) else request_id
            abort = types.SimpleNamespace(name="ABORT")
            await self.engine_core._send_input(abort, ids if internal else [f"{rid}-1a2b" for rid in ids])

    class InputProcessor:
        @staticmethod
        def assign_request_id(request):
            request.external_req_id = request.request_id
            request.request_id += "-1a2b"

    class EngineDeadError(Exception):
        pass

    class ParserManager:
        parser = None

        @classmethod
        def get_parser(cls, tool_parser_name=None, enable_auto_tools=False):
            return cls.parser

    fake_modules("vllm", __version__="0.32.0")
    fake_modules("vllm.parser.parser_manager", ParserManager=ParserManager)
    fake_modules("vllm.envs", VLLM_USE_RUST_FRONTEND=False)
    fake_modules("vllm.v1.engine.core", EngineCore=EngineCore, EngineCoreProc=EngineCoreProc, make_zmq_socket=make_core_socket)
    fields = {"EngineCoreOutputs": ("engine_index", "outputs"), "EngineCoreOutput": ("request_id", "new_token_ids", "finish_reason")}
    for name, names in fields.items():
        monkeypatch.setattr(sys.modules["vllm.v1.engine"], name, type(name, (), {"__struct_encode_fields__": names}), raising=False)
    fake_modules("vllm.v1.core.sched.scheduler", Scheduler=Scheduler)
    fake_modules("vllm.v1.engine.core_client", AsyncMPClient=AsyncMPClient, make_zmq_socket=make_zmq_socket)
    fake_modules("vllm.v1.engine.async_llm", AsyncLLM=AsyncLLM)
    fake_modules("vllm.v1.engine.input_processor", InputProcessor=InputProcessor)
    fake_modules("vllm.v1.engine.exceptions", EngineDeadError=EngineDeadError)
    monkeypatch.setattr(afterbay_vllm, "vllm_version", lambda: "0.32.0")
    classes = dict(EngineCore=EngineCore, EngineCoreProc=EngineCoreProc, Scheduler=Scheduler, AsyncMPClient=AsyncMPClient, AsyncLLM=AsyncLLM, ParserManager=ParserManager, InputProcessor=InputProcessor)
    return types.SimpleNamespace(calls=calls, sent=sent, **classes)


@pytest.fixture
def engine():
    """An EngineCore after its handshake with one API server."""

    def make(outputs=("ipc:///vllm/out",), **model):
        known = dict(model="/models/m", tokenizer="/models/m", served_model_name="m")
        config = types.SimpleNamespace(model_config=types.SimpleNamespace(get_vocab_size=lambda: 2048, **{**known, **model}), parallel_config=types.SimpleNamespace(data_parallel_size=1))
        return types.SimpleNamespace(addresses=types.SimpleNamespace(outputs=list(outputs)), vllm_config=config)

    return make


class RealVllm:
    """The Python with vLLM from `shared/vllm/install`, in AFTERBAY_VLLM_HOME or ~/.cache/afterbay-vllm."""

    def __init__(self, home):
        self.home, self.python = home, home / "venv/bin/python"

    def run(self, code, *, path=(), timeout=180, **env):
        """Run `code` with `path` in front of PYTHONPATH."""
        environment = {key: value for key, value in os.environ.items() if key not in VARIABLES}
        environment.update(PYTHONPATH=os.pathsep.join(map(str, path)), HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_TARGET_DEVICE="cpu", PYTHONDONTWRITEBYTECODE="1")
        environment.update({key: str(value) for key, value in env.items()})
        return subprocess.run([str(self.python), "-c", code], env=environment, capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="session")
def real_vllm():
    home = pathlib.Path(os.environ.get("AFTERBAY_VLLM_HOME") or pathlib.Path.home() / ".cache/afterbay-vllm")
    if not (home / "done").exists():
        pytest.skip(f"no vLLM in {home}: run shared/vllm/install, or set AFTERBAY_VLLM_HOME")
    return RealVllm(home)


@pytest.fixture
def on_path(lay_out):
    return lay_out("afterbay_vllm", "vllm.general_plugins")
