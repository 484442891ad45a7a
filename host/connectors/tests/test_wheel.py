"""Tests the wheel `afterbay` in a fresh environment. `make test-connector` builds the wheel from the tests' binaries."""
import json
import os
import pathlib
import subprocess
import sys
import time
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
CONNECTORS = [ROOT / "host/connectors" / name for name in ("afterbay_connector", "afterbay_sglang", "afterbay_vllm")]
GROUPS = {"sglang.srt.plugins": "afterbay_sglang:register", "vllm.general_plugins": "afterbay_vllm:register"}

# Finds the plugins of each engine's group as the engine does, and imports them.
PLUGINS = f"""
import importlib.metadata, json, os
points = [point for group in {list(GROUPS)} for point in importlib.metadata.entry_points(group=group)]
assert all(callable(point.load()) for point in points)
import afterbay_connector
print(json.dumps({{
    "points": [[point.group, point.value, point.name, point.dist.name, point.dist.version] for point in points],
    "file": afterbay_connector.__file__,
    "version": afterbay_connector.__version__,
    "ingress": os.environ.get("AFTERBAY_INGRESS"),
}}))
"""


@pytest.fixture(scope="module")
def wheel():
    wheels = os.environ.get("AFTERBAY_TEST_WHEELS")
    if not wheels:
        pytest.skip("AFTERBAY_TEST_WHEELS names no directory: run make test-connector")
    return max(pathlib.Path(wheels).glob("afterbay-*.whl"), key=lambda file: file.stat().st_mtime)


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A new virtual environment with nothing but the wheel."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = [home / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", wheel]
    subprocess.run(pip, check=True)
    return home


def run(environment, *command):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AFTERBAY_", "SGLANG_", "VLLM_", "PYTHON"))}
    kept["PATH"] = f"{environment}/bin:{kept['PATH']}"
    # Python finds modules in the directory where it starts, such as this checkout's connector.
    done = subprocess.run(command, cwd=environment, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def points(version):
    """The entry points of the wheel."""
    return [[group, value, "afterbay", "afterbay", version] for group, value in GROUPS.items()]


needs_3_10 = pytest.mark.skipif(sys.version_info < (3, 10), reason="importlib.metadata of Python 3.9, for which there is no SGLang with plugins")


@needs_3_10
def test_the_wheel_installs_the_binaries_and_the_connectors_of_one_version(environment):
    long_version = run(environment, "afterbay", "--version")
    found = json.loads(run(environment, "python", "-c", PLUGINS))
    assert long_version.splitlines()[0] == f"afterbay {found['version']}"
    assert run(environment, "afterbay-follow", "--version").split() == ["afterbay-follow", found["version"]]
    assert found["points"] == points(found["version"])
    assert found["file"].startswith(str(environment))


def test_the_wheel_has_every_file_of_the_connectors_the_licence_and_the_sboms(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        sboms = {name.rsplit("/")[-1]: json.loads(archive.read(name)) for name in names if name.endswith(".cyclonedx.json")}
    files = [file for connector in CONNECTORS for file in connector.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    missing = {file.relative_to(CONNECTORS[0].parent).as_posix() for file in files} - set(names)
    assert len(files) > 25 and not missing
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not any("__pycache__" in name for name in names)
    components = {file: {component["name"] for component in sbom["components"]} for file, sbom in sboms.items()}
    assert {"wasmtime", "afterbay-stream"} <= components.pop("afterbay.cyclonedx.json")
    assert {"zeromq", "afterbay-journal"} <= components.pop("afterbay-follow.cyclonedx.json")
    assert not components


@needs_3_10
def test_the_launcher_of_an_installed_wheel_gives_the_command_one_connector(environment, tmp_path):
    launcher = ["afterbay", "sglang", "--admin", "none", "--journal", tmp_path / "journal", "--"]
    found = json.loads(run(environment, *launcher, "python", "-c", PLUGINS))
    assert found["ingress"].startswith("ipc://")
    assert found["points"] == points(found["version"])
    # The launcher's own copy, which is removed with the run.
    assert pathlib.Path(found["file"]).parents[1] == pathlib.Path(found["ingress"][len("ipc://"):]).parent
    deadline = time.monotonic() + 60
    while pathlib.Path(found["file"]).exists():
        assert time.monotonic() < deadline, found["file"]
        time.sleep(0.05)
