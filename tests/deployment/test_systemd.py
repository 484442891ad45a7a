"""The systemd unit: systemd itself reads and rates it where systemd is installed, and its promises hold everywhere."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "host/tools/afterbay/dist/afterbay.service"
# In tenths, as --threshold takes it: 2.0 of 10.
EXPOSURE_MAX = 20

needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")


def settings():
    """The last value of each setting, as systemd reads a setting that is no list."""
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_a_restart_keeps_the_connections_and_the_names_of_sockets():
    unit = settings()
    assert int(unit["FileDescriptorStoreMax"]) == 4096
    assert unit["RestartKillSignal"] == "SIGKILL", "SIGTERM would drain and close the connections"
    assert unit["RuntimeDirectoryPreserve"] == "restart"
    assert "PrivateTmp" not in unit, "SGLang has its sockets in /tmp"
    assert "RemoveIPC" not in unit, "it would remove credit pages"
    lines = UNIT.read_text().splitlines()
    assert lines.index("Type=notify") < lines.index("Type=notify-reload"), "an early systemd keeps the first"
    assert "Environment=FDSTORE=4096" in lines


def test_a_wrong_configuration_is_not_tried_again_and_an_absent_one_starts_nothing():
    unit = settings()
    assert (unit["Restart"], unit["RestartPreventExitStatus"]) == ("always", "64")
    assert unit["ConditionPathExists"] == "/etc/afterbay/afterbay.toml"
    assert "--config /etc/afterbay/afterbay.toml" in unit["ExecStart"]


def test_the_page_about_supervision_includes_the_unit_and_repeats_no_line_of_its_hardening():
    page = (ROOT / "docs/src/operate/supervision.md").read_text()
    assert "{{#include ../../../host/tools/afterbay/dist/afterbay.service}}" in page
    assert "SystemCallFilter=@system-service" not in page


@needs_systemd
def test_systemd_accepts_every_line(tmp_path):
    unit = tmp_path / UNIT.name
    # verify looks for the program on this machine.
    unit.write_text(UNIT.read_text().replace("ExecStart=afterbay ", "ExecStart=/bin/true "))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    # Units of the machine itself may be reported, too.
    reported = [line for line in done.stderr.splitlines() if UNIT.name in line]
    version = int(subprocess.check_output(["systemd-analyze", "--version"], text=True).split()[1])
    if version < 253:
        reported = [line for line in reported if "Failed to parse service type, ignoring: notify-reload" not in line]
    assert reported == []


@needs_systemd
def test_systemd_rates_the_exposure_as_low():
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", UNIT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr
