"""Tests the connector with the installed vLLM, in processes of its own Python. Skipped if there is none."""
import json

LOADED = """
import json, sys
from vllm.plugins import load_general_plugins
load_general_plugins()
def wrapped():
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.engine import core_client
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import AsyncMPClient
    functions = [EngineCoreProc.process_input_sockets, EngineCoreProc.process_output_sockets, Scheduler.__init__, AsyncMPClient.__init__, AsyncMPClient.get_output_async, AsyncLLM.check_health, core_client.make_zmq_socket]
    return [getattr(function, "__module__", "") and "afterbay_vllm" in function.__code__.co_filename for function in functions]
"""


def test_the_functions_of_the_installed_version_are_wrapped_when_they_load(real_vllm, on_path, tmp_path):
    code = LOADED + "early = 'vllm.v1.engine.core_client' in sys.modules\nprint(json.dumps([early, wrapped()]))"
    done = real_vllm.run(code, path=[on_path], AFTERBAY_INGRESS="ipc:///a", AFTERBAY_CREDIT=tmp_path / "credit")
    assert done.returncode == 0, done.stderr[-2000:]
    early, wrapped = json.loads(done.stdout.strip().splitlines()[-1])
    assert not early, "a worker would load the engine's modules"
    assert wrapped == [True] * 7


def test_nothing_is_wrapped_without_a_variable_or_by_a_filter(real_vllm, on_path):
    for env in ({}, {"AFTERBAY_INGRESS": "ipc:///a", "VLLM_PLUGINS": "other"}):
        done = real_vllm.run(LOADED + "print(json.dumps(wrapped()))", path=[on_path], **env)
        assert json.loads(done.stdout.strip().splitlines()[-1]) == [False] * 7, done.stderr[-2000:]


def test_refused_settings_end_the_process(real_vllm, on_path):
    done = real_vllm.run(LOADED, path=[on_path], AFTERBAY_ABORT="ipc:///a")
    assert done.returncode == 1 and 'afterbay_vllm: AFTERBAY_ABORT "ipc:///a" needs AFTERBAY_INGRESS' in done.stderr
