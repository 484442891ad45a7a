"""Tests which functions of vLLM are wrapped, and the errors if that is impossible."""
import sys

import pytest

import afterbay_vllm
from afterbay_vllm.__main__ import refusal
from afterbay_vllm.versions import joins_none

HOOKED = ["ParserManager.get_parser", "EngineCoreProc.process_input_sockets", "EngineCoreProc.process_output_sockets", "Scheduler.__init__", "EngineCore.preprocess_add_request", "Scheduler._update_request_as_session"]
HOOKED += ["AsyncLLM.check_health", "AsyncMPClient.__init__", "AsyncMPClient.get_output_async"]


def hooked(vllm):
    functions = {name: getattr(getattr(vllm, name.split(".")[0]), name.split(".")[1]) for name in HOOKED}
    return [name for name, function in functions.items() if hasattr(function, "__wrapped__")]


def test_nothing_set_wraps_nothing_and_imports_nothing(fake_vllm, monkeypatch):
    for module in ("engine", "front_end", "tool_calls"):
        monkeypatch.delitem(sys.modules, f"afterbay_vllm.{module}", raising=False)
    afterbay_vllm.register()
    assert hooked(fake_vllm) == []
    assert not {"afterbay_vllm.engine", "afterbay_vllm.front_end", "afterbay_vllm.tool_calls"} & set(sys.modules)


def test_an_ingress_wraps_the_engine_the_health_check_and_the_parsers(fake_vllm, monkeypatch):
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    afterbay_vllm.register()
    assert hooked(fake_vllm) == HOOKED[:7]


def test_credit_wraps_the_api_server_and_the_parsers_once(fake_vllm, monkeypatch):
    monkeypatch.setenv("AFTERBAY_CREDIT", "/c")
    afterbay_vllm.register()
    afterbay_vllm.register()
    assert hooked(fake_vllm) == [HOOKED[0], *HOOKED[7:]]
    assert not hasattr(fake_vllm.AsyncMPClient.__init__.__wrapped__, "__wrapped__")


def test_a_missing_parameter_stops_the_start_with_the_version(fake_vllm, monkeypatch):
    fake_vllm.EngineCoreProc.process_output_sockets = lambda self, paths: None
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    with pytest.raises(SystemExit, match="vLLM 0.32.0 has no vllm.v1.engine.core.EngineCoreProc.process_output_sockets with a parameter output_paths"):
        afterbay_vllm.register()


def test_a_vllm_without_a_function_that_the_stream_does_not_need_starts_with_a_warning(fake_vllm, monkeypatch, caplog):
    del fake_vllm.EngineCore.preprocess_add_request
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    afterbay_vllm.register()
    assert "vLLM 0.32.0: requests have no records" in caplog.text


def test_refused_settings_stop_the_start_with_a_reason(fake_vllm, monkeypatch):
    monkeypatch.setenv("AFTERBAY_ABORT", "ipc:///a")
    with pytest.raises(SystemExit, match='afterbay_vllm: AFTERBAY_ABORT "ipc:///a" needs AFTERBAY_INGRESS'):
        afterbay_vllm.register()


@pytest.mark.parametrize("version, works", [("0.25.1", False), ("0.26.0", True), ("0.32.0+cpu", True), ("0.33.0rc1", True), ("0.34.0", True), ("1.0", True), ("dev", True)])
def test_another_version_is_refused_with_its_name(fake_vllm, monkeypatch, version, works):
    monkeypatch.setattr(afterbay_vllm, "vllm_version", lambda: version)
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    if works:
        afterbay_vllm.register()
        assert refusal(version, {}) is None
        return
    with pytest.raises(SystemExit, match=f"vLLM {version} is older than vLLM 0.26"):
        afterbay_vllm.register()
    assert hooked(fake_vllm) == [] and version in refusal(version, {})


def test_an_unknown_version_runs_without_afterbay(fake_vllm, monkeypatch):
    monkeypatch.setattr(afterbay_vllm, "vllm_version", lambda: "0.99.0")
    afterbay_vllm.register()
    assert hooked(fake_vllm) == []


def test_a_filter_without_the_connector_is_refused():
    for filter, works in [("afterbay", True), ("other,afterbay", True), ("other, afterbay", False), ("", False), ("other", False)]:
        assert (refusal("0.32.0", {"VLLM_PLUGINS": filter}) is None) == works, filter
    assert refusal(None, {}) == "vLLM is not installed for this Python"
    assert "needs AFTERBAY_INGRESS" in refusal("0.32.0", {"AFTERBAY_ABORT": "ipc:///a"})


@pytest.mark.parametrize("version, joins", [("0.26.0", False), ("0.31.0", False), ("0.32.0", True), ("0.33.0", True)])
def test_no_row_is_joined_for_a_version_that_reads_past_a_stop_string(version, joins):
    assert (joins_none(version) is None) == joins
    assert joins or f"vLLM {version} takes tokens behind a stop string" in joins_none(version)
