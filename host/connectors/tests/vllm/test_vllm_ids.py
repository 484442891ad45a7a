"""Tests the parts of the id that vLLM's API server makes, and requests that Afterbay migrates, with the HTTP requests of starlette as fakes."""
import types

import pytest

import afterbay_vllm
from afterbay_connector import http_gate


class Request:
    """The parts of starlette's Request that the connector and vLLM use."""

    def __init__(self, scope, receive=None):
        self.scope, self.receive = scope, receive

    @property
    def headers(self):
        return {name.decode(): value.decode() for name, value in self.scope["headers"]}

    @property
    def state(self):
        return self.scope.setdefault("state", types.SimpleNamespace())


def http(**headers):
    return Request({"headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]}, "receive")


def id_of_vllm(request, raw_request):
    """As OpenAIServing._base_request_id does."""
    return (raw_request and raw_request.headers.get("x-request-id")) or request.request_id


@pytest.fixture
def serving(fake_vllm, fake_modules, monkeypatch):
    class OpenAIServingChat:
        def create_chat_completion(self, request, raw_request=None):
            return id_of_vllm(request, raw_request), raw_request

    class OpenAIServingCompletion:
        def create_completion(self, request, raw_request=None):
            return id_of_vllm(request, raw_request), raw_request

    fake_modules("vllm.entrypoints.openai.chat_completion.serving", OpenAIServingChat=OpenAIServingChat)
    fake_modules("vllm.entrypoints.openai.completion.serving", OpenAIServingCompletion=OpenAIServingCompletion)

    def register(source="", **env):
        monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///in")
        monkeypatch.setenv("AFTERBAY_TENANT", source)
        for name, value in env.items():
            monkeypatch.setenv(f"AFTERBAY_{name}", value)
        afterbay_vllm.register()
        return OpenAIServingChat().create_chat_completion, OpenAIServingCompletion().create_completion

    return register


def body(user=None, prompt=(1, 2), n=1, seed=None):
    return types.SimpleNamespace(request_id="random", user=user, prompt=list(prompt), n=n, seed=seed)


def test_the_tenant_of_a_header_stands_before_the_id(serving):
    for create in serving("header:x-tenant"):
        raw = http(x_tenant="acme", x_request_id="gw-7")
        made, passed = create(body(), raw_request=raw)
        assert made == "acme~gw-7"
        assert (passed.receive, passed.headers) == ("receive", {"x-tenant": "acme"})
        assert passed.state is raw.state, "vLLM's middleware reads the state of its own request"
        assert create(body(), http(x_tenant="acme"))[0] == "acme~random"


def test_the_field_user_is_the_tenant_and_no_client_can_write_one_into_its_id(serving):
    chat, _ = serving("user")
    assert chat(body("bob"), http())[0] == "bob~random"
    assert chat(body(), http(x_request_id="acme~7"))[0] == "~acme~7"
    assert chat(body("bob"), None) == ("random", None)


def test_a_lease_stands_behind_the_tenant(serving):
    for create in serving("header:x-tenant", ABORT="ipc:///abort", LEASE_MAX="10m"):
        assert create(body(), http(x_tenant="acme", x_afterbay_lease="1h"))[0] == "acme~lease-600s~random"
        assert create(body(), http(x_request_id="7"))[0] == "~7"


def test_the_stream_of_a_request_is_named_as_its_client_gets_the_id(serving, clients_key):
    for create, kind in zip(serving("header:x-tenant", CLIENTS_KEY=clients_key), ("chatcmpl", "cmpl")):
        raw = http(x_tenant="acme", x_request_id="7")
        assert create(body(), raw)[0] == "acme~7"
        assert raw.state.afterbay_stream == f"{kind}-acme~7"
        assert create(body(), None) == ("random", None)


def test_without_parts_the_id_is_the_clients(serving, clients_key):
    chat, _ = serving(CLIENTS_KEY=clients_key)
    for raw, made in ((http(x_request_id="7"), "7"), (http(), "random")):
        assert (chat(body(), raw)[0], raw.state.afterbay_stream) == (made, f"chatcmpl-{made}")


@pytest.fixture
def migrated(monkeypatch):
    """The task works for a request that Afterbay migrates."""
    rid = "0_cmpl-acme~lease-60s~7-0-1a2b3c4d"
    monkeypatch.setattr(http_gate, "_scope", types.SimpleNamespace(get=lambda: {"state": {http_gate.RID: rid}}))
    return rid


def test_a_migrated_request_gets_its_rid_and_no_parts(serving, fake_vllm, clients_key, migrated):
    _, create = serving("header:x-tenant", CLIENTS_KEY=clients_key)
    raw = http(x_tenant="acme", x_request_id="7")
    assert create(body(), raw) == ("7", raw)
    request = types.SimpleNamespace(request_id="cmpl-7-0")
    fake_vllm.InputProcessor().assign_request_id(request)
    assert (request.request_id, request.external_req_id) == (migrated, "cmpl-7-0")


@pytest.mark.parametrize("runner, seed, used", [({}, 7, 9), ({"use_v2_model_runner": False}, (1 << 63) - 1, 1), ({"use_v2_model_runner": True}, 7, 7), ({}, None, None)])
def test_a_migrated_request_draws_other_noise_unless_the_same_seed_goes_on(serving, clients_key, migrated, runner, seed, used):
    _, create = serving(CLIENTS_KEY=clients_key)
    create.__self__.engine_client = types.SimpleNamespace(vllm_config=types.SimpleNamespace(**runner))
    asked = body(seed=seed)
    create(asked, http())
    assert asked.seed == used


def test_another_request_keeps_the_rid_that_vllm_makes(serving, fake_vllm, clients_key):
    serving(CLIENTS_KEY=clients_key)
    request = types.SimpleNamespace(request_id="cmpl-7-0")
    fake_vllm.InputProcessor().assign_request_id(request)
    assert request.request_id == "cmpl-7-0-1a2b"


@pytest.mark.parametrize("several", [dict(n=2), dict(prompt=["a", "b"]), dict(prompt=[[1], [2]]), dict(prompt=[])])
def test_several_requests_are_not_migrated_as_one(serving, fake_modules, clients_key, migrated, several):
    fake_modules("fastapi", HTTPException=RuntimeError)
    _, create = serving(CLIENTS_KEY=clients_key)
    with pytest.raises(RuntimeError, match="must be one prompt and n = 1"):
        create(body(**several), http())


def test_the_applications_of_the_api_server_are_behind_the_gate(serving, fake_modules, clients_key):
    class FastAPI:
        def build_middleware_stack(self):
            return "application"

    fake_modules("fastapi.applications", FastAPI=FastAPI)
    serving(CLIENTS_KEY=clients_key)
    assert isinstance(FastAPI().build_middleware_stack(), http_gate.Gate)
