"""Tests the rids of samples, and the tenant and the lease in a rid, with fakes of SGLang's requests."""
import re
import types

import pytest

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


def hook(target, tenant=None, lease=None):
    parts = IdParts(TenantSource.parse(tenant), lease)
    settings = Settings("ipc:///in", None, None, ids=parts if tenant or lease else None)
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
