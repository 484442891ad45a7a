"""Tests the tenant and the lease in a request's id."""
import pytest

from afterbay_connector.settings import Refused
from afterbay_connector.request_id import IdParts, LeaseSource, TenantSource, lease_ms, lease_of


def test_a_tenant_comes_from_a_header_or_from_the_field_user():
    header, user = TenantSource.parse("header:X-Tenant"), TenantSource.parse("user")
    assert header.of({"X-Tenant": "acme"}, "someone") == "acme"
    assert user.of({"X-Tenant": "acme"}, "someone") == "someone"
    assert header.of({}, "someone") == user.of({}, None) == ""
    assert TenantSource.parse(None) is TenantSource.parse("") is None


@pytest.mark.parametrize("value", ["header:", "header:a b", "header", "users", "user:x"])
def test_another_source_is_refused(value):
    with pytest.raises(Refused, match="must be user or header:NAME"):
        TenantSource.parse(value)


@pytest.mark.parametrize("value", ["a~b", "a b", "a\n", "-", "a-", "é", "x" * 65])
def test_a_value_that_would_be_misread_in_an_id_is_no_tenant(value):
    assert TenantSource.parse("user").of({}, value) == ""


def test_an_id_without_a_tenant_has_the_mark_too():
    ids = IdParts.parse({"AFTERBAY_TENANT": "user"})
    assert ids.put("7", {}, "acme") == "acme~7"
    assert ids.put("acme~7", {}) == "~acme~7"


@pytest.mark.parametrize("wish, lease", [(None, 0), ("60s", 60), ("2m", 120), ("1h", 600), ("0s", 0), ("60", 0), ("-1s", 0), ("1.5s", 0), ("٣s", 0), ("", 0)])
def test_a_lease_is_cut_to_the_longest_and_another_wish_is_none(wish, lease):
    headers = {} if wish is None else {"x-afterbay-lease": wish}
    made = IdParts.parse({"AFTERBAY_LEASE_MAX": "10m"}).put("7", headers)
    assert made == (f"~lease-{lease}s~7" if lease else "7")
    assert lease_of(made) == (lease or None)


def test_every_engine_keeps_the_lease_and_no_tenant_is_read_as_one():
    ids = IdParts.parse({"AFTERBAY_LEASE_MAX": "10m", "AFTERBAY_LEASE": "1h", "AFTERBAY_TENANT": "header:t"})
    made = ids.put("7", {"t": "acme"})
    assert made == "acme~lease-600s~7"
    for rid in (made, f"chatcmpl-{made}-1a2b", f"0_cmpl-{made}-0-1a2b", f"{made}_0-n5e0c"):
        assert (lease_of(rid), lease_ms(rid)) == (600, 600_000)
    assert ids.put("7", {"t": "acme", "x-afterbay-lease": "0s"}) == "acme~7"
    for rid in ("7", "x-lease-5s~7", "lease-5s~7", "acme~7~lease-5s~7", "~lease-5~7", "~lease-s~7", None, 7):
        assert (lease_of(rid), lease_ms(rid)) == (None, None)


def test_without_the_variable_nobody_has_a_lease():
    assert IdParts.parse({}) is IdParts.parse({"AFTERBAY_LEASE_MAX": ""}) is IdParts.parse({"AFTERBAY_LEASE_MAX": "0s"}) is None
    assert IdParts.parse({"AFTERBAY_TENANT": "user"}).put("7", {"x-afterbay-lease": "60s"}, "a") == "a~7"
    with pytest.raises(Refused, match='AFTERBAY_LEASE_MAX "10": must be whole seconds, minutes or hours'):
        LeaseSource.parse({"AFTERBAY_LEASE_MAX": "10"})
    with pytest.raises(Refused, match='AFTERBAY_LEASE "1m": needs AFTERBAY_LEASE_MAX'):
        LeaseSource.parse({"AFTERBAY_LEASE": "1m"})
