"""The Kubernetes example: kustomize renders it, the schemas of Kubernetes accept it, and its parts agree with each other."""

import re
import subprocess
import tomllib

import kubernetes_validate
import pytest
from conftest import need
from pod import KUBERNETES, objects, rendered, template

pytestmark = need("kubectl")
OVERLAYS = sorted(str(path.parent.relative_to(KUBERNETES)) for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))
# The first version that the example supports, and the newest whose schemas there are.
VERSIONS = ["1.30", kubernetes_validate.latest_version()]
MIB = 2**20
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
# The formula of docs/src/operate/kubernetes.md: memory.waiting with the room of the allocator, and the memory of the process.
WAITING = 1.25
PROCESS = 256 * MIB


def size(text):
    number, unit = re.fullmatch(r"(\d+)([KMG]iB?)", text).groups()
    return int(number) * UNITS[unit]


def pod(overlay):
    return template(overlay)["spec"]


def container(overlay, name):
    return next(each for each in pod(overlay)["initContainers"] + pod(overlay)["containers"] if each["name"] == name)


def config(overlay):
    (each,) = objects(overlay, "ConfigMap")
    return tomllib.loads(each["data"]["afterbay.toml"])


def test_there_is_an_overlay_for_each_engine():
    assert OVERLAYS == ["overlays/dynamo", "overlays/sglang", "overlays/sglang-kept-journal", "overlays/vllm"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_accepts_every_object(overlay, version):
    for each in rendered(overlay):
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_afterbay_accepts_the_configuration_of_the_config_map(overlay, afterbay, tmp_path):
    (each,) = objects(overlay, "ConfigMap")
    file = tmp_path / "afterbay.toml"
    file.write_text(each["data"]["afterbay.toml"])
    run = container(overlay, "afterbay")["command"]
    assert f"--config=/etc/afterbay/{file.name}" in run
    done = subprocess.run([afterbay, "check", "--config", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    # A name with a hash would start new pods, and load their models, for each change of the configuration.
    assert each["metadata"]["name"] == "afterbay"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_afterbay_starts_before_the_engine_and_ends_after_it(overlay):
    inits = pod(overlay)["initContainers"]
    assert [each["name"] for each in inits] == ["connector", "afterbay"]
    assert inits[1]["restartPolicy"] == "Always"
    assert "startupProbe" in inits[1], "the engine starts when this probe has succeeded"
    command = " ".join(inits[1]["command"])
    drain = int(re.search(r"--drain-timeout=(\d+)s", command)[1])
    stop = container(overlay, "engine")["lifecycle"]["preStop"]["sleep"]["seconds"]
    # Each leg has the whole drain timeout. The rest is the engine's.
    assert pod(overlay)["terminationGracePeriodSeconds"] >= stop + 2 * drain + 120


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_pod_is_restricted_and_its_containers_share_a_user(overlay):
    spec = pod(overlay)
    shared = spec["securityContext"]
    assert shared["runAsNonRoot"] and shared["runAsUser"] == shared["runAsGroup"] == shared["fsGroup"] != 0
    assert shared["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in spec["initContainers"] + spec["containers"]:
        own = each["securityContext"]
        assert own["allowPrivilegeEscalation"] is False and own["capabilities"] == {"drop": ["ALL"]}
        assert own.keys().isdisjoint({"runAsUser", "runAsGroup", "privileged"})
        if each["name"] != "engine":
            assert own["readOnlyRootFilesystem"] is True
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_both_containers_have_the_sockets_the_credit_pages_and_the_models_at_the_same_path(overlay):
    def mounts(name):
        return {each["name"]: each["mountPath"] for each in container(overlay, name)["volumeMounts"]}

    both = {"run": "/run/afterbay", "tmp": "/tmp", "shm": "/dev/shm", "models": "/models"}
    for name in ("afterbay", "engine"):
        assert both.items() <= mounts(name).items()
    assert "journal" not in mounts("engine"), "the engine's container does not read other tenants' texts"
    volumes = {each["name"]: each for each in pod(overlay)["volumes"]}
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    # The process of the rendezvous file must be visible.
    assert pod(overlay)["shareProcessNamespace"] is True


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_connectors_variables_name_what_afterbay_is_configured_with(overlay):
    engine = {each["name"]: each["value"] for each in container(overlay, "engine")["env"]}
    first, *second = config(overlay)["stream"]
    assert engine["AFTERBAY_INGRESS"] == first["listen"]
    assert engine.get("AFTERBAY_TEXT_INGRESS") == next((leg["listen"] for leg in second), None)
    assert [leg["after"] for leg in second] == ([] if first.get("engine") == "vllm" else [first["name"]])
    assert engine["AFTERBAY_ABORT"] == first["abort"]["push"]
    command = container(overlay, "afterbay")["command"]
    assert f"--rendezvous={engine['AFTERBAY_RENDEZVOUS']}" in command
    assert engine["PYTHONPATH"] == container(overlay, "connector")["command"][-1]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_memory_limit_follows_from_the_configuration(overlay):
    table = config(overlay)
    frames = sum(size(stream.get("max_message", "256MiB")) for stream in table["stream"])
    plugins = [plugin for stream in table["stream"] for plugin in stream.get("plugin", [])]
    of_plugins = sum(2 * size(plugin.get("limits", {}).get("memory", "64MiB")) for plugin in plugins)
    least = WAITING * size(table["memory"]["waiting"]) + frames + of_plugins + PROCESS
    assert size(container(overlay, "afterbay")["resources"]["limits"]["memory"]) == least


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_journals_volume_has_more_room_than_the_journal_may_use(overlay):
    retained = size(config(overlay)["journal"]["retain"]["bytes"])
    claims = [each["spec"].get("volumeClaimTemplates", []) for each in objects(overlay, "StatefulSet")]
    room = [each["emptyDir"]["sizeLimit"] for each in pod(overlay)["volumes"] if each["name"] == "journal"]
    room += [claim["spec"]["resources"]["requests"]["storage"] for claims in claims for claim in claims]
    (room,) = room
    # A full emptyDir evicts the pod. Two streams reserve a segment each.
    assert size(room) >= retained + 4 * 256 * MIB


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_missing_token_restarts_afterbay_at_most_and_never_the_engine(overlay):
    engine = container(overlay, "engine")
    # SGLang's and vLLM's /health fail while Afterbay is away; Dynamo's /live, SGLang's /ping and vLLM's /version do not.
    assert engine["livenessProbe"]["httpGet"]["path"] in ("/ping", "/live", "/version")
    sidecar = container(overlay, "afterbay")
    paths = {probe: sidecar[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    # A restart of the keeper closes connections, so it has a minute to answer.
    assert sidecar["livenessProbe"]["periodSeconds"] * sidecar["livenessProbe"]["failureThreshold"] >= 60


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_admin_address_is_read_only_and_open_to_the_monitoring_namespace_alone(overlay):
    admin = config(overlay)["admin"]
    (port,) = container(overlay, "afterbay")["ports"]
    assert admin["listen"].endswith(f":{port['containerPort']}") and "token_file" not in admin
    (policy,) = objects(overlay, "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= template(overlay)["metadata"]["labels"].items()
    admin_rules = [rule for rule in policy["spec"]["ingress"] if {"port": "admin"} in rule["ports"]]
    (rule,) = admin_rules
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
