"""Tests which hooks are registered in which process, and the errors if that is impossible."""
import enum
import multiprocessing
import sys

import pytest

import afterbay_sglang
from afterbay_sglang import rendezvous


class Kind(enum.Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class Registry:
    def __init__(self):
        self.registered = []

    def register(self, target, hook, kind):
        self.registered.append((target.replace("sglang.srt.managers.", ""), kind.name))


class Manager:
    """A class with every method that the connector hooks."""

    def init_ipc_channels(self, port_args): ...
    def abort_request(self, abort): ...
    def handle_generate_request(self, request): ...
    def handle_embedding_request(self, request): ...
    def create_req(self, request, tokenizer): ...
    def regenerate_rid(self): ...
    async def generate_request(self, obj, request=None): ...
    def create_abort_task(self, obj): ...
    def build_middleware_stack(self): ...
    async def handle_request(self, request, raw_request): ...
    def event_loop(self): ...
    def multi_http_worker_event_loop(self): ...
    async def _handle_batch_output(self, batch): ...
    async def _distribute_result_to_workers(self, message): ...
    async def _handle_abort_finish_reason(self, out, state, is_stream): ...


SCHEDULER = [("scheduler.Scheduler.init_ipc_channels", "AFTER"), ("scheduler.Scheduler.__init__", "AFTER")]
ABORT = [("scheduler.Scheduler.abort_request", "AROUND")]
HTTP = [("io_struct.GenerateReqInput.regenerate_rid", "AROUND"), ("fastapi.applications.FastAPI.build_middleware_stack", "AROUND")]
RECORDS = [("scheduler.Scheduler.handle_generate_request", "AROUND"), ("scheduler.Scheduler.handle_embedding_request", "AROUND"), ("sglang.srt.session.session_controller.Session.create_req", "AFTER")]
ERRORS = [("tokenizer_manager.TokenizerManager._handle_abort_finish_reason", "AROUND")]
TOKENIZER = [
    ("tokenizer_manager.TokenizerManager.__init__", "BEFORE"),
    ("tokenizer_manager.TokenizerManager._handle_batch_output", "AROUND"),
]
ROUTER = [
    ("multi_tokenizer_mixin.MultiTokenizerRouter.__init__", "BEFORE"),
    ("multi_tokenizer_mixin.MultiTokenizerRouter._distribute_result_to_workers", "AROUND"),
]
DETOKENIZER = [
    ("detokenizer_manager.DetokenizerManager.__init__", "BEFORE"),
    ("detokenizer_manager.DetokenizerManager.__init__", "AFTER"),
    ("detokenizer_manager.DetokenizerManager.event_loop", "AROUND"),
    ("detokenizer_manager.DetokenizerManager.multi_http_worker_event_loop", "AROUND"),
]


@pytest.fixture
def registry(fake_modules, monkeypatch):
    registry = Registry()
    fake_modules("sglang.srt.plugins.hook_registry", HookRegistry=registry, HookType=Kind)
    monkeypatch.setattr(afterbay_sglang, "_registered", False)
    return registry


@pytest.fixture
def all_modules(fake_modules):
    fake_modules("sglang.srt.managers.scheduler", Scheduler=Manager)
    fake_modules("sglang.srt.session.session_controller", Session=Manager)
    fake_modules("sglang.srt.managers.io_struct", GenerateReqInput=Manager)
    fake_modules("sglang.srt.entrypoints.openai.serving_base", OpenAIServingBase=Manager)
    fake_modules("sglang.srt.managers.tokenizer_manager", TokenizerManager=Manager)
    fake_modules("fastapi.applications", FastAPI=Manager)
    fake_modules("sglang.srt.managers.multi_tokenizer_mixin", MultiTokenizerRouter=Manager)
    fake_modules("sglang.srt.managers.detokenizer_manager", DetokenizerManager=Manager)


def test_nothing_set_registers_nothing_and_imports_nothing(registry, monkeypatch):
    monkeypatch.delitem(sys.modules, "afterbay_sglang.ingress", raising=False)
    monkeypatch.delitem(sys.modules, "afterbay_sglang.readers", raising=False)
    afterbay_sglang.register()
    assert registry.registered == []
    assert "afterbay_sglang.ingress" not in sys.modules and "afterbay_sglang.readers" not in sys.modules


def test_ingress_hooks_the_scheduler_and_the_rids_of_samples_only(registry, all_modules, monkeypatch):
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    afterbay_sglang.register()
    assert registry.registered == SCHEDULER + HTTP + RECORDS + ERRORS


@pytest.mark.parametrize("tenant, openai", [("header:X-Tenant", []), ("user", [("sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request", "AROUND")])])
def test_a_source_of_tenants_hooks_the_requests_too(registry, all_modules, monkeypatch, tenant, openai):
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    monkeypatch.setenv("AFTERBAY_TENANT", tenant)
    afterbay_sglang.register()
    assert registry.registered == SCHEDULER + HTTP + [("tokenizer_manager.TokenizerManager.generate_request", "AROUND"), *openai] + RECORDS + ERRORS


def test_the_key_of_clients_hooks_the_requests_and_the_beginning_of_their_answers(registry, all_modules, monkeypatch, clients_key):
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    monkeypatch.setenv("AFTERBAY_CLIENTS_KEY", clients_key)
    afterbay_sglang.register()
    tokenizer = [(f"tokenizer_manager.TokenizerManager.{name}", "AROUND") for name in ("generate_request", "create_abort_task")]
    assert registry.registered == SCHEDULER + HTTP + tokenizer + RECORDS + ERRORS


def test_credit_hooks_the_readers_only(registry, all_modules, monkeypatch):
    monkeypatch.setenv("AFTERBAY_CREDIT", "/c")
    afterbay_sglang.register()
    assert registry.registered == TOKENIZER + ROUTER + DETOKENIZER + ERRORS


def test_a_text_ingress_hooks_the_detokenizer_too(registry, all_modules, monkeypatch):
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    monkeypatch.setenv("AFTERBAY_TEXT_INGRESS", "ipc:///t")
    afterbay_sglang.register()
    assert registry.registered == SCHEDULER + HTTP + [("detokenizer_manager.DetokenizerManager.__init__", "AFTER")] + RECORDS + ERRORS


PARSERS = [
    ("sglang.srt.function_call.function_call_parser.FunctionCallParser.parse_stream_chunk", "AROUND"),
    ("sglang.srt.function_call.json_array_parser.JsonArrayParser.parse_streaming_increment", "AROUND"),
    ("sglang.srt.parser.reasoning_parser.ReasoningParser.__init__", "AFTER"),
    ("sglang.srt.parser.reasoning_parser.ReasoningParser.parse_stream_chunk", "AROUND"),
    ("sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat._process_tool_call_stream", "AROUND"),
]


class Parser:
    parse_stream_chunk = parse_streaming_increment = _process_tool_call_stream = print


@pytest.fixture
def all_parsers(fake_modules):
    fake_modules("sglang.srt.function_call.function_call_parser", FunctionCallParser=Parser)
    fake_modules("sglang.srt.function_call.json_array_parser", JsonArrayParser=Parser)
    fake_modules("sglang.srt.parser.reasoning_parser", ReasoningParser=Parser)
    fake_modules("sglang.srt.entrypoints.openai.serving_chat", OpenAIServingChat=Parser)


@pytest.mark.parametrize(
    "variables, others",
    [(dict(INGRESS="ipc:///a"), SCHEDULER + HTTP + RECORDS), (dict(CREDIT="/c"), TOKENIZER + ROUTER + DETOKENIZER), (dict(INGRESS="ipc:///a", ABORT="ipc:///b"), ABORT + SCHEDULER + HTTP + RECORDS)],
    ids=["ingress", "credit", "abort"],
)
def test_the_parsers_are_hooked_whatever_is_set(registry, all_modules, all_parsers, monkeypatch, variables, others):
    for name, value in variables.items():
        monkeypatch.setenv(f"AFTERBAY_{name}", value)
    afterbay_sglang.register()
    assert registry.registered == others + ERRORS + PARSERS


def test_a_version_without_a_parser_is_named_in_a_warning_and_starts(registry, all_modules, all_parsers, fake_modules, monkeypatch, caplog):
    fake_modules("sglang.srt.function_call.json_array_parser", JsonArrayParser=object)
    monkeypatch.setattr(rendezvous, "sglang_version", lambda: "0.5.30")
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    afterbay_sglang.register()
    assert registry.registered == SCHEDULER + HTTP + RECORDS + ERRORS + [hook for hook in PARSERS if "json_array" not in hook[0]]
    [warning] = [record.getMessage() for record in caplog.records]
    assert "SGLang 0.5.30 has no usable sglang.srt.function_call.json_array_parser.JsonArrayParser.parse_streaming_increment" in warning


def test_a_spawned_child_that_loads_no_parser_imports_none(registry, fake_modules, monkeypatch, caplog):
    """A scheduler has loaded a module beside serving_chat, but not serving_chat."""
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    fake_modules("sglang.srt.managers.scheduler", Scheduler=Manager)
    fake_modules("sglang.srt.session.session_controller", Session=Manager)
    fake_modules("sglang.srt.entrypoints.openai.protocol")
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    afterbay_sglang.register()
    assert registry.registered == SCHEDULER + RECORDS and not caplog.records


def test_registering_twice_hooks_once(registry, all_modules, monkeypatch):
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    afterbay_sglang.register()
    afterbay_sglang.register()
    assert registry.registered == SCHEDULER + HTTP + RECORDS + ERRORS


def test_a_spawned_child_hooks_only_what_it_has_loaded(registry, fake_modules, monkeypatch):
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    fake_modules("sglang.srt.managers.scheduler", Scheduler=Manager)
    fake_modules("sglang.srt.session.session_controller", Session=Manager)
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    monkeypatch.setenv("AFTERBAY_CREDIT", "/c")
    afterbay_sglang.register()
    assert registry.registered == SCHEDULER + RECORDS


def test_a_missing_function_stops_the_start_with_a_reason(registry, fake_modules, monkeypatch):
    fake_modules("sglang.srt.managers.scheduler", Scheduler=object)
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    with pytest.raises(SystemExit, match="has no usable sglang.srt.managers.scheduler.Scheduler.init_ipc_channels.*0.5.11 to 0.5.23"):
        afterbay_sglang.register()
    assert registry.registered == []


RUST_SERVER = [
    ("scheduler.Scheduler.init_ipc_channels", "AFTER"),
    ("sglang.srt.rust_server.server.RustServer.launch", "AROUND"),
    ("scheduler_components.output_streamer._GenerationStreamAccumulator.to_payload", "AROUND"),
    ("sglang.srt.rust_server.server.RustServer.push_generation", "AROUND"),
    ("sglang.srt.rust_server.server.RustServer.push_abort", "AROUND"),
    ("sglang.srt.rust_server.server.RustServer.push_health_ack", "AROUND"),
    ("sglang.srt.rust_server.server.RustServer.drain", "AFTER"),
]


class RustManager:
    drain = to_payload = print

    @classmethod
    def launch(cls, scheduler):
        pass

    def push_generation(self, payload, decode_latencies):
        pass

    def push_abort(self, abort, req):
        pass

    def push_health_ack(self):
        pass


def test_the_rust_server_is_hooked_in_place_of_the_readers(registry, all_modules, fake_modules, monkeypatch):
    fake_modules("sglang.srt.rust_server.server", RustServer=RustManager)
    fake_modules("sglang.srt.managers.scheduler_components.output_streamer", _GenerationStreamAccumulator=RustManager)
    monkeypatch.setattr(rendezvous, "sglang_version", lambda: "0.5.23")
    for name, value in dict(INGRESS="ipc:///a", RENDEZVOUS="/r.json", CREDIT="/c", TEXT_INGRESS="ipc:///t").items():
        monkeypatch.setenv(f"AFTERBAY_{name}", value)
    monkeypatch.setenv("SGLANG_RUST_SERVER", "1")
    afterbay_sglang.register()
    assert registry.registered == RUST_SERVER + RECORDS


def test_a_rust_server_with_other_methods_stops_the_start_and_the_reason_names_the_method(registry, all_modules, fake_modules, monkeypatch):
    changed = type("RustServer", (RustManager,), {"push_generation": lambda self, payload: None})
    fake_modules("sglang.srt.rust_server.server", RustServer=changed)
    fake_modules("sglang.srt.managers.scheduler_components.output_streamer", _GenerationStreamAccumulator=RustManager)
    monkeypatch.setattr(rendezvous, "sglang_version", lambda: "0.6.0")
    for name, value in dict(AFTERBAY_INGRESS="ipc:///a", AFTERBAY_RENDEZVOUS="/r.json", SGLANG_RUST_SERVER="1").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="SGLang 0.6.0 has no usable .*push_generation .*it has 2 parameters, not 3"):
        afterbay_sglang.register()


def test_refused_settings_stop_the_start_with_a_reason(registry, all_modules, monkeypatch):
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    monkeypatch.setenv("SGLANG_RUST_SERVER", "1")
    with pytest.raises(SystemExit, match="afterbay_sglang: SGLANG_RUST_SERVER is on"):
        afterbay_sglang.register()
    assert registry.registered == []
