"""The pod of the Kubernetes example at work, with a simulated engine in the place of SGLang or vLLM: see pod.py."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from pod import Pod, until, why_impossible

IMPOSSIBLE = why_impossible()
pytestmark = pytest.mark.skipif(IMPOSSIBLE is not None, reason=f"this machine runs no pod: {IMPOSSIBLE}")

# The connector writes this file for an engine without a detokenizer. The writing process then becomes the scheduler.
RENDEZVOUS = {
    "format": 1,
    "engine": "sglang",
    "leg": "tokens",
    "written_unix_ns": 1,
    "mode": "skip_tokenizer_init",
    "ipc_format": "msgpack",
    "ingress": "ipc:///run/afterbay/ingress",
    "down": "ipc:///tmp/tokenizer",
    "down_kind": "tokenizer",
    "credit": "/dev/shm/afterbay/tokenizer",
    "abort": "ipc:///run/afterbay/abort",
    "text_none": "there is no detokenizer",
    "instance_id": "one",
}
# The same of vLLM's connector, for one API server.
VLLM_RENDEZVOUS = {
    "format": 1,
    "engine": "vllm",
    "vllm": "0.32.0",
    "leg": "tokens",
    "written_unix_ns": 1,
    "mode": "normal",
    "ipc_format": "msgpack",
    "ingress": "ipc:///run/afterbay/ingress",
    "down": "ipc:///tmp/tokenizer",
    "down_kind": "api_server",
    "client": 0,
    "credit": "/dev/shm/afterbay/tokenizer",
    "joins_none": None,
    "abort": "ipc:///run/afterbay/abort",
    "instance_id": "",
}
ENGINE = """
umask 077
mkdir -p /dev/shm/afterbay
afterbay sim reader --bind ipc:///tmp/tokenizer --credit /dev/shm/afterbay/tokenizer --requests %(requests)d --json > /tmp/read.json &
printf '{"pid": %%d, %%s' $$ '%(rendezvous)s' > /run/afterbay/rendezvous.json
afterbay sim scheduler --connect ipc:///run/afterbay/ingress %(wire)s --requests %(requests)d --tokens %(tokens)d --steps-per-second 100
wait $!
"""


def engine(requests=100, tokens=100, is_vllm=False):
    rendezvous = json.dumps(VLLM_RENDEZVOUS if is_vllm else RENDEZVOUS).removeprefix("{")
    wire = "--engine vllm" if is_vllm else "--wire msgpack"
    return ["sh", "-c", ENGINE % {"requests": requests, "tokens": tokens, "rendezvous": rendezvous, "wire": wire}]


@pytest.fixture(params=["overlays/sglang", "overlays/dynamo", "overlays/sglang-kept-journal", "overlays/vllm"])
def overlay(request):
    return request.param


@pytest.fixture
def pod(overlay, afterbay, tmp_path):
    with Pod(overlay, tmp_path, afterbay) as pod:
        yield pod


def started(pod):
    """Afterbay's container, after its startup probe has succeeded."""
    sidecar = pod.start("afterbay")
    until("the startup probe", lambda: sidecar.process.poll() is None and pod.passes("afterbay", "startupProbe"))
    return sidecar


def received(pod):
    """The tokens that Afterbay has received."""
    metrics = pod.get("afterbay", "admin", "/metrics")[1]
    return sum(int(count) for count in re.findall(r"^afterbay_tokens_received_total\{.*\} (\d+)", metrics, re.MULTILINE))


def read(pod):
    """What the engine's reader has seen."""
    return json.loads((pod.volumes["tmp"] / "read.json").read_text())


def test_the_engine_streams_through_afterbay_and_both_end_in_order(pod, overlay):
    assert pod.start("connector").wait() == 0
    sidecar = started(pod)
    assert not pod.passes("afterbay", "readinessProbe"), "no engine has written its rendezvous file"
    assert pod.get("afterbay", "admin", "/metrics", host="127.0.0.1")[0] == 200
    running = pod.start("engine", engine(is_vllm=overlay == "overlays/vllm"))
    until("readiness", lambda: pod.passes("afterbay", "readinessProbe"))
    assert running.wait() == 0, running.text() + sidecar.text()
    assert read(pod)["requests"] == 100, read(pod)
    assert sidecar.stop() == 0, sidecar.text()


@pytest.mark.parametrize("overlay", ["overlays/sglang"], indirect=True)
def test_a_changed_config_map_takes_effect_without_a_restart(pod):
    rule = '\n[[stream.attribute]]\nprefix = "batch-"\nset = { tenant = "batch" }\n'
    sidecar = started(pod)
    running = pod.start("engine", engine(requests=20, tokens=300))
    until("tokens", lambda: received(pod) > 0)
    pod.change_map("afterbay", "afterbay.toml", lambda text: text + rule)
    until("the reload", lambda: sidecar.events("ConfigReloaded"))
    assert running.wait() == 0, running.text() + sidecar.text()
    assert len(sidecar.events("SenderConnected")) == 1


@pytest.mark.parametrize("overlay", ["overlays/sglang"], indirect=True)
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_of_afterbays_container_repeats_no_token_and_reports_those_that_were_in_the_socket(pod, sent):
    sidecar = started(pod)
    running = pod.start("engine", engine(requests=20, tokens=300))
    until("tokens", lambda: received(pod) > 0)
    sidecar.stop(sent)
    again = started(pod)
    running.wait()
    faults = read(pod)["faults"]
    missing = sum(event["tokens"] for event in again.events("FramesMissing"))
    assert faults.pop("lost_tokens") == missing, again.text()
    assert faults.pop("samples") == [] or missing
    assert set(faults.values()) == {0}, faults
    assert read(pod)["requests"] == 20


@pytest.mark.parametrize("overlay", ["overlays/sglang"], indirect=True)
def test_the_worker_of_a_running_container_is_replaced_without_a_loss(pod):
    sidecar = started(pod)
    running = pod.start("engine", engine(requests=20, tokens=300))
    until("tokens", lambda: received(pod) > 0)
    children = f"/proc/{sidecar.pid()}/task/{sidecar.pid()}/children"
    os.kill(int(Path(children).read_text().split()[0]), signal.SIGKILL)
    assert running.wait() == 0, running.text() + sidecar.text()
    assert read(pod)["good"] and len(sidecar.events("SenderConnected")) == 1
