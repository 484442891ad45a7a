"""Tests the check before a start: `python -m afterbay_sglang`."""

import pytest

from afterbay_sglang.__main__ import refusal


@pytest.mark.parametrize("version", ["0.5.11", "0.5.23", "0.5.23.post1", "0.6.0rc1", "1.0"])
def test_a_version_with_plugins_works(version):
    assert refusal(version, {}) is None


@pytest.mark.parametrize("version", ["0.5.10", "0.5.6.post2", "0.4.99"])
def test_an_older_version_is_refused(version):
    assert refusal(version, {}) == f"SGLang {version} has no plugins, the connector needs >= 0.5.11"


def test_a_missing_sglang_is_refused():
    assert refusal(None, {}) == "SGLang is not installed for this Python"


def test_a_filter_without_the_connector_is_refused():
    assert "add afterbay to the list" in refusal("0.5.23", {"SGLANG_PLUGINS": "none"})
    assert refusal("0.5.23", {"SGLANG_PLUGINS": "other, afterbay"}) is None
    assert refusal("0.5.23", {"SGLANG_PLUGINS": ""}) is None


def test_settings_that_the_start_refuses_are_refused():
    assert "SGLANG_RUST_SERVER is on" in refusal("0.5.23", {"AFTERBAY_CREDIT": "/c", "SGLANG_RUST_SERVER": "1"})
