"""The environment of SGLang's connector, and the real SGLang if it is installed."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

from afterbay_sglang import workers

PACKAGE = pathlib.Path(__file__).resolve().parents[2]
VARIABLES = ("AFTERBAY_INGRESS", "AFTERBAY_TEXT_INGRESS", "AFTERBAY_RENDEZVOUS", "AFTERBAY_CREDIT", "AFTERBAY_ABORT", "AFTERBAY_TENANT", "AFTERBAY_LEASE_MAX", "AFTERBAY_LEASE", "AFTERBAY_CLIENTS_KEY", "AFTERBAY_ENGINE", "AFTERBAY_HTTP_APP", "SGLANG_HTTP_SERVER_APP_PATH", "SGLANG_RUST_SERVER", "SGLANG_PLUGINS", "SGLANG_PLATFORM", "SGLANG_ZMQ_ALLOWED_PEERS")


class SenderWrapper:
    """Holds the socket of an output, as SGLang's own class does."""

    __module__ = "sglang.srt.managers.scheduler_components.output_sender"

    def __init__(self, socket):
        self.socket = socket


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    # A router that a test makes changes these for its child processes.
    monkeypatch.setattr(workers, "_has_router", False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


@pytest.fixture
def no_sglang():
    """Forgets the fake SGLang modules of a test after the test."""

    def take():
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "sglang"}

    before = take()
    yield
    take()
    sys.modules.update(before)


class RealSglang:
    """The Python with SGLang from `shared/sglang/install`, in AFTERBAY_SGLANG_HOME or ~/.cache/afterbay-sglang."""

    def __init__(self, home):
        self.python = home / "venv/bin/python"
        self.root = next(iter(sorted(home.glob("sglang-*/sglang"))), home / "absent").parent

    def exists(self):
        return self.python.exists() and self.root.name.startswith("sglang-")

    def run(self, code, *, path=(), timeout=180, **env):
        """Run `code` with `path` in front of PYTHONPATH, isolated from installed copies of the connector."""
        environment = {key: value for key, value in os.environ.items() if key not in VARIABLES}
        environment.update(
            PYTHONPATH=os.pathsep.join([*map(str, path), str(self.root)]),
            HF_HUB_OFFLINE="1",
            TRANSFORMERS_OFFLINE="1",
            OMP_NUM_THREADS="1",
            PYTHONWARNINGS="ignore",
            PYTHONDONTWRITEBYTECODE="1",
        )
        environment.update({key: str(value) for key, value in env.items()})
        return subprocess.run([str(self.python), "-c", code], env=environment, capture_output=True, text=True, timeout=timeout)

    def answer(self, code, **kwargs):
        """Return the last line that `code` prints, as JSON."""
        done = self.run(code, **kwargs)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="session")
def real_sglang():
    home = pathlib.Path(os.environ.get("AFTERBAY_SGLANG_HOME") or pathlib.Path.home() / ".cache/afterbay-sglang")
    real = RealSglang(home)
    if not real.exists():
        pytest.skip(f"no SGLang in {home}: run shared/sglang/install, or set AFTERBAY_SGLANG_HOME")
    return real


@pytest.fixture
def on_path(lay_out):
    return lay_out("afterbay_sglang", "sglang.srt.plugins")
