"""Tests the rids of samples, the parts of a rid, and requests that Afterbay migrates, with fakes of SGLang's requests."""
import re
import types

import pytest

from afterbay_connector import http_gate
from afterbay_connector.request_id import IdParts, LeaseSource, TenantSource
from afterbay_sglang import ids
from afterbay_sglang.settings import Settings


def regenerate(request):
    request.rid = ["f" * 32] if isinstance(request.rid, list) else "f" * 32
    return request.rid


def test_a_sample_keeps_the_id_of_its_request():
    samples = [types.SimpleNamespace(rid="gw-7_0") for _ in range(2)]
    made = [ids.name_sample(regenerate, sample) for sample in samples]
    assert made == [sample.rid for sample in samples] and len(set(made)) == 2
    assert all(re.fullmatch("gw-7_0-n[0-9a-f]{12}", rid) for rid in made)
    several = types.SimpleNamespace(rid=["a"])
    assert ids.name_sample(regenerate, several) == several.rid == ["f" * 32]


def http(headers=(), **state):
    return types.SimpleNamespace(headers=dict(headers), state=types.SimpleNamespace(**state))


def hook(target, tenant=None, lease=None, clients_key=None):
    parts = IdParts(TenantSource.parse(tenant), lease)
    settings = Settings("ipc:///in", None, None, ids=parts if tenant or lease else None, clients_key=clients_key)
    return {name.split(".")[-1]: hook for name, _, hook in ids.hooks(settings)}.get(target)


@pytest.mark.parametrize("rid, named", [("7", "acme~7"), (["a", "b"], ["acme~a", "acme~b"]), ("acme~7", "acme~acme~7")])
def test_the_tenant_of_a_header_is_put_into_the_rids(rid, named):
    request, made = types.SimpleNamespace(rid=rid), []
    call = hook("generate_request", "header:X-Tenant")
    call(lambda tokenizer, obj, request: made.append(obj.rid), None, request, http({"X-Tenant": "acme"}))
    assert made == [named]


def test_a_request_without_a_tenant_gets_the_mark_and_a_random_id():
    request = types.SimpleNamespace(rid=None)
    ids.put_parts(IdParts(TenantSource.parse("header:X-Tenant")), request, http())
    assert re.fullmatch("~[0-9a-f]{32}", request.rid)


def test_the_field_user_is_kept_until_the_tokenizer_gets_the_request():
    raw, request = http(), types.SimpleNamespace(rid="7")
    hook("handle_request", "user")(lambda serving, request, raw_request: None, None, types.SimpleNamespace(user="bob"), raw)
    hook("generate_request", "user")(lambda tokenizer, obj, request: None, None, request, raw)
    assert request.rid == "bob~7"


def test_health_checks_and_requests_that_are_not_http_keep_their_rids():
    check, own = types.SimpleNamespace(rid="HEALTH_CHECK_1"), types.SimpleNamespace(rid="7")
    call = hook("generate_request", "header:X-Tenant")
    call(lambda tokenizer, obj, request: None, None, check, http({"X-Tenant": "acme"}))
    call(lambda tokenizer, obj, request: None, None, own)
    assert (check.rid, own.rid) == ("HEALTH_CHECK_1", "7")
    assert hook("generate_request") is None


def test_the_lease_of_a_header_is_put_into_the_rids_with_and_without_a_tenant():
    lease = LeaseSource(max_s=600)
    for tenant, wish, rid in ((None, "60s", "~lease-60s~7"), ("header:X-Tenant", "60s", "acme~lease-60s~7"), (None, None, "7")):
        request = types.SimpleNamespace(rid="7")
        headers = {"X-Tenant": "acme", **({"x-afterbay-lease": wish} if wish else {})}
        hook("generate_request", tenant, lease)(lambda tokenizer, obj, request: None, None, request, http(headers))
        assert request.rid == rid
    assert hook("handle_request", None, lease) is None


def generate(request, raw, **asked):
    """Return the rid of a request for the scheduler."""
    hook("generate_request", **asked)(lambda tokenizer, obj, request: None, None, request, raw)
    return request.rid


def asked(rid=None, **fields):
    return types.SimpleNamespace(**{"rid": rid, "text": "a", "input_ids": None, "sampling_params": None, "stream": True, **fields})


def test_the_stream_of_a_request_is_named_by_its_rid():
    raw = http({"X-Tenant": "acme"})
    assert generate(asked("7"), raw, tenant="header:X-Tenant", clients_key="/k") == raw.state.afterbay_stream == "acme~7"
    raw = http()
    rid = generate(asked(), raw, clients_key="/k")
    assert rid == raw.state.afterbay_stream and re.fullmatch("[0-9a-f]{32}", rid)


BATCHES = [dict(rid=["a"]), dict(text=["a", "b"]), dict(text=None, input_ids=[[1], [2]]), dict(text=None, input_embeds=[[[0.5]]])]


@pytest.mark.parametrize("fields", [*BATCHES, dict(rid="HEALTH_CHECK_1")])
def test_a_batch_and_a_health_check_have_no_stream(fields):
    raw = http()
    generate(asked(**fields), raw, clients_key="/k")
    assert not hasattr(raw.state, "afterbay_stream")


def test_an_embedding_has_no_stream():
    raw, embedding = http(), types.SimpleNamespace(rid="7", text="a")
    assert generate(embedding, raw, clients_key="/k") == "7" and not hasattr(raw.state, "afterbay_stream")


def test_a_stream_is_named_once_and_before_its_answer_begins(fake_modules, monkeypatch):
    raw = http({"X-Tenant": "acme"})
    fake_modules("starlette.requests", Request=lambda scope: raw)
    wanted = dict(tenant="header:X-Tenant", clients_key="/k")
    request = asked("7", input_embeds=[[0.5]], text=None)
    begins = hook("create_abort_task", **wanted)
    begins(lambda tokenizer, obj: None, None, request)
    assert request.rid == "7", "no HTTP request"
    monkeypatch.setattr(http_gate, "_scope", types.SimpleNamespace(get=lambda: {}))
    begins(lambda tokenizer, obj: None, None, request)
    assert generate(request, raw, **wanted) == raw.state.afterbay_stream == "acme~7"
    # SGLang may ask the scheduler again for the same HTTP request.
    assert generate(asked("7"), raw, **wanted) == "acme~7"


def test_a_migrated_request_gets_its_rid_and_no_parts():
    raw = http({"X-Tenant": "acme"}, afterbay_rid="acme~lease-60s~7")
    wanted = dict(tenant="header:X-Tenant", lease=LeaseSource(600), clients_key="/k")
    assert generate(asked("other", text=None, input_ids=[1, 2]), raw, **wanted) == "acme~lease-60s~7"
    assert not hasattr(raw.state, "afterbay_stream")


@pytest.mark.parametrize("several", [*BATCHES, dict(sampling_params={"n": 2}), dict(sampling_params=[{}])])
def test_several_requests_are_not_migrated_as_one(fake_modules, several):
    fake_modules("fastapi", HTTPException=RuntimeError)
    with pytest.raises(RuntimeError, match="must be one prompt and n = 1"):
        generate(asked(**several), http(afterbay_rid="7"), clients_key="/k")
