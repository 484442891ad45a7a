"""`afterbay top` in a terminal: it draws, follows Afterbay over a restart, and gives the terminal back at every end."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

# Seconds for anything to happen on a busy machine.
PATIENCE = 60
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


class Screen:
    """A command in a terminal of 80 x 24."""

    def __init__(self, command, **environment):
        self.terminal, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(child)
        inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        environment = {**inherited, "TERM": "xterm-256color", **environment}
        # A process group of its own: a stop signal does not stop the tests.
        self.process = subprocess.Popen(
            command, stdin=child, stdout=child, stderr=child, env=environment, process_group=0
        )
        self.child = child
        self.written = ""

    def until(self, text):
        """Reads until this text is on the screen, and returns all that was written since the last call."""
        end = time.monotonic() + PATIENCE
        while text not in self.words():
            assert time.monotonic() < end, f"{text!r} is not in {self.written!r}"
            if select.select([self.terminal], [], [], 0.3)[0]:
                self.written += os.read(self.terminal, 65536).decode(errors="replace")
            elif text != LEAVE:
                # Characters that stay the same are not written again, until ctrl-l.
                self.press("\x0c")
        written, self.written = self.written, ""
        return written

    def words(self):
        """The characters that were written, and the escape sequences of the alternate screen."""
        return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", self.written)

    def press(self, keys):
        os.write(self.terminal, keys.encode())

    def is_as_before(self):
        return termios.tcgetattr(self.child) == self.before

    def end(self):
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)
        os.close(self.child)


class Running:
    """`afterbay run` with one stream and no scheduler."""

    def __init__(self, binary, directory):
        config = f"""
[[stream]]
name   = "decode-0"
listen = "ipc://{directory}/in"
[[stream.sink]]
name    = "reader"
connect = "ipc://{directory}/out"
[journal]
dir = "{directory}/journal"
[admin]
listen = "unix:{directory}/admin"
"""
        (directory / "afterbay.toml").write_text(config)
        self.admin = f"unix:{directory}/admin"
        self.command = [binary, "run", "--config", directory / "afterbay.toml"]
        self.log = open(directory / "log", "w")
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)
        path, end = self.admin.removeprefix("unix:"), time.monotonic() + PATIENCE
        while not os.path.exists(path):
            assert self.process.poll() is None and time.monotonic() < end, "afterbay run does not start"
            time.sleep(0.02)

    def stop(self):
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0


@pytest.fixture
def running(afterbay, tmp_path_factory):
    run = Running(afterbay, tmp_path_factory.mktemp("top"))
    yield run
    if run.process.poll() is None:
        run.stop()


@pytest.fixture
def top(afterbay, running):
    screen = Screen([afterbay, "top", "--admin", running.admin])
    assert ENTER in screen.until("decode-0")
    yield screen
    screen.end()


def ended(screen):
    code = screen.process.wait(PATIENCE)
    assert LEAVE in screen.until(LEAVE)
    assert screen.is_as_before()
    return code


def test_q_and_ctrl_c_end_and_give_the_terminal_back(afterbay, running):
    for key in ["q", "\x03"]:
        screen = Screen([afterbay, "top", "--admin", running.admin])
        screen.until("decode-0")
        assert not screen.is_as_before()
        screen.press(key)
        assert ended(screen) == 0
        screen.end()


def test_sigterm_ends_and_gives_the_terminal_back(top):
    top.process.terminate()
    assert ended(top) == 128 + signal.SIGTERM


def test_ctrl_z_gives_the_terminal_back_until_the_process_continues(top):
    top.press("\x1a")
    assert LEAVE in top.until(LEAVE)
    _, status = os.waitpid(top.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGTSTP
    assert top.is_as_before()
    os.kill(top.process.pid, signal.SIGCONT)
    assert ENTER in top.until("decode-0")
    assert not top.is_as_before()


def test_views_are_opened_by_keys(top):
    top.press("s")
    top.until("OLDEST")
    top.press("p")
    top.until("no plugin")
    top.press("?")
    top.until("ctrl-z")


def test_a_restart_is_followed_and_said(top, running):
    first = running.process.pid
    running.stop()
    top.until("no answer")
    running.start()
    top.until(f"pid {first} to {running.process.pid}")


def test_no_color_writes_no_colour(afterbay, running):
    colour = re.compile(r"\x1b\[[0-9;]*(3[0-7]|38|9[0-7])[;m]")
    for environment, is_coloured in [({"NO_COLOR": ""}, False), ({}, True)]:
        screen = Screen([afterbay, "top", "--admin", running.admin], **environment)
        written = screen.until("decode-0")
        screen.end()
        assert bool(colour.search(written)) == is_coloured, written


def test_once_json_and_a_pipe_are_plain(afterbay, running):
    def output(*args):
        done = subprocess.run(
            [afterbay, "top", "--admin", running.admin, *args], capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        return done.stdout

    for args in [[], ["--once"]]:
        table = output(*args)
        assert f"pid {running.process.pid}" in table and "STREAM\tLIVE" in table and "decode-0\treader\t" in table
    lines = output("--json", "--once").splitlines()
    assert [json.loads(line)["streams"][0]["name"] for line in lines] == ["decode-0"]


def test_without_an_afterbay_once_fails_and_names_the_address(afterbay, tmp_path):
    done = subprocess.run(
        [afterbay, "top", "--once", "--admin", f"unix:{tmp_path}/none"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert f"admin unix:{tmp_path}/none: cannot be connected to" in done.stderr
