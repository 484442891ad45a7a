"""The processes of a measured case: their start, their end, and what they cost."""

import os
import signal
import subprocess
import time
from pathlib import Path

from capacity import Failed

# Seconds until a part of SGLang is ready; it imports torch.
START_MAX = 240
TICKS = os.sysconf("SC_CLK_TCK")


class Processes:
    """The processes of one case, each in a session of its own, with a log in the case's directory."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.running = {}

    def start(self, name, command, environment):
        log = open(self.directory / f"{name}.log", "w")
        self.running[name] = subprocess.Popen(
            [str(part) for part in command], env=environment, stdout=log, stderr=log, start_new_session=True
        )

    def wait_file(self, path, name):
        """Waits for a file that the process writes."""
        end = time.monotonic() + START_MAX
        while not Path(path).exists():
            if self.running[name].poll() is not None or time.monotonic() > end:
                raise Failed(f"{name} did not start: {self.log(name)}")
            time.sleep(0.1)

    def wait_end(self, name, seconds):
        try:
            code = self.running[name].wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"{name} did not end in {seconds} s: {self.log(name)}") from None
        if code != 0:
            raise Failed(f"{name} ended with {code}: {self.log(name)}")

    def log(self, name):
        return (self.directory / f"{name}.log").read_text()[-1500:]

    def end(self):
        """Ends all, and what they started. SGLang's TokenizerManager catches SIGTERM."""
        for name, process in self.running.items():
            if name == "afterbay" and process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def cpu(pid):
    """The CPU seconds of a process so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mb(pid):
    """The most resident memory of a process so far, in MiB."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def tree(pid):
    """A process and its descendants."""
    found, children = [], {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    waiting = [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def running(binary):
    """The processes of a binary."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                is_it = os.readlink(entry / "exe") == str(binary)
            except OSError:
                continue
            if is_it:
                found.add(int(entry.name))
    return found
