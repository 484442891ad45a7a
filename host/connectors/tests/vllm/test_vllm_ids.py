"""Tests the tenant and the lease in the id that vLLM's API server makes, with the HTTP requests of starlette as fakes."""
import types

import pytest

import afterbay_vllm


class Request:
    """The parts of starlette's Request that the connector and vLLM use."""

    def __init__(self, scope, receive=None):
        self.scope, self.receive = scope, receive

    @property
    def headers(self):
        return {name.decode(): value.decode() for name, value in self.scope["headers"]}

    @property
    def state(self):
        return self.scope.setdefault("state", {})


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

    def register(source, **env):
        monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///in")
        monkeypatch.setenv("AFTERBAY_TENANT", source)
        for name, value in env.items():
            monkeypatch.setenv(f"AFTERBAY_{name}", value)
        afterbay_vllm.register()
        return OpenAIServingChat().create_chat_completion, OpenAIServingCompletion().create_completion

    return register


def body(user=None):
    return types.SimpleNamespace(request_id="random", user=user)


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
