"""Tests the tenant in a request's id."""
import pytest

from afterbay_connector.settings import Refused
from afterbay_connector.tenant import TenantSource, with_tenant


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
    assert with_tenant("acme", "7") == "acme~7"
    assert with_tenant("", "acme~7") == "~acme~7"
