#!/usr/bin/env python3
"""kill -9 of the worker of `afterbay run --keep`, again and again, under load.

A simulated scheduler sends requests whose ids follow from their names. A relay passes the frames on by a plain libzmq PUSH
socket (pyzmq). The simulated reader counts on a credit page and checks every request: lost, repeated, late and changed ids.

    python tests/bench/kills.py --binary target/release/afterbay --kills 1000

The option --systemd makes the real systemd the supervisor, as process 1 of a namespace of its own. This needs root.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import zmq


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/release/afterbay")
    parser.add_argument("--kills", type=int, default=50, help="kills over each transport")
    parser.add_argument("--transports", nargs="+", default=["ipc", "tcp"], choices=["ipc", "tcp"])
    parser.add_argument("--life", type=float, default=2.5, help="longest life of a worker, in seconds; lives are random")
    parser.add_argument("--rate", type=float, default=40, help="requests that arrive in a second")
    parser.add_argument("--steps", type=int, default=200, help="frames in a second; 0: as fast as possible")
    parser.add_argument("--tokens", default="20-400", help="tokens of a request")
    parser.add_argument("--round", type=int, default=50, help="kills in one round: a scheduler and a reader from start to end")
    parser.add_argument("--systemd", action="store_true", help="run under systemd instead of --keep")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", help="a new directory for sockets, journal and log [default: in /dev/shm]")
    return parser.parse_args()


class Relay(threading.Thread):
    """Passes frames from the simulated scheduler to Afterbay, over libzmq on both sides."""

    def __init__(self, context, bind, connect):
        super().__init__(daemon=True)
        self.receive = context.socket(zmq.PULL)
        self.receive.bind(bind)
        self.send = context.socket(zmq.PUSH)
        self.send.connect(connect)
        self.frames = 0
        self.ends = False

    def run(self):
        while not self.ends:
            if self.receive.poll(100):
                self.send.send(self.receive.recv(copy=False), copy=False)
                self.frames += 1
        self.receive.close(0)
        self.send.close(5000)


UNIT = """
[Unit]
DefaultDependencies=no
StartLimitIntervalSec=0
[Service]
Type=notify
NotifyAccess=main
Environment=FDSTORE=4096
ExecStart={binary} run --config {directory}/afterbay.toml
FileDescriptorStoreMax=4096
WatchdogSec=30
Restart=always
RestartSec=100ms
StandardOutput=append:{directory}/log
StandardError=append:{directory}/log
"""
SYSTEMD = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /sys/fs/cgroup
mkdir -p /run/systemd/system /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
mount --bind {directory}/units /etc/systemd/system
export container=unshare
exec /lib/systemd/systemd --system --unit=afterbay.target --log-target=console --show-status=no
"""


def start_systemd(binary, directory):
    """Starts systemd with one service. Returns the process to end, and systemd's process id."""
    units = pathlib.Path(directory, "units")
    units.mkdir()
    (units / "afterbay.target").write_text("[Unit]\nDefaultDependencies=no\nWants=afterbay.service\n")
    (units / "afterbay.service").write_text(UNIT.format(binary=binary, directory=directory))
    with open(f"{directory}/console", "wb") as console:
        unshare = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount", "--uts", "--mount-proc", "--kill-child", "sh", "-c", SYSTEMD.format(directory=directory)],
            stdout=console, stderr=console)
    time.sleep(2)
    return unshare, children(unshare.pid)[0]


def children(process):
    with open(f"/proc/{process}/task/{process}/children") as text:
        return [int(child) for child in text.read().split()]


def worker_of(supervisor):
    """The process id of the supervisor's worker, None between two lives."""
    for child in children(supervisor):
        try:
            if pathlib.Path(f"/proc/{child}/comm").read_text().startswith("afterbay"):
                return child
        except (FileNotFoundError, ProcessLookupError):
            pass
    return None


def configuration(directory, listen, connect):
    return f"""
[[stream]]
name = "decode"
listen = "{listen}"

[[stream.sink]]
name = "reader"
connect = "{connect}"
credit = "{directory}/credit"
reader = "tokenizer"

[journal]
dir = "{directory}/journal"
retain = {{ bytes = "4GiB" }}

[admin]
listen = "unix:{directory}/admin.sock"
"""


def kill(keeper, number, life, log):
    """Kills the worker `number` times, each after a random life. Returns how many were killed before their stream had started."""
    unready, last = 0, None
    for _ in range(number):
        while (worker := worker_of(keeper)) in (None, last):
            time.sleep(0.002)
        time.sleep(random.uniform(0, life))
        with open(log, "rb") as text:
            text.seek(max(0, os.path.getsize(log) - 4096))
            unready += b"started, receives on" not in text.read().rsplit(b" admin: unix", 1)[-1]
        os.kill(worker, signal.SIGKILL)
        last = worker
    return unready


def one_round(options, binary, directory, relay_at, reader_at, kills, seed, keeper, log):
    seconds = kills * (options.life / 2 + 0.8)
    requests = max(20, int(options.rate * seconds))
    reader = subprocess.Popen(
        [binary, "sim", "reader", "--bind", reader_at, "--credit", f"{directory}/credit", "--requests", str(requests), "--idle", "60s", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    scheduler = subprocess.Popen(
        [binary, "sim", "scheduler", "--connect", relay_at, "--requests", str(requests), "--tokens", options.tokens, "--rate", str(options.rate),
         "--steps-per-second", str(options.steps), "--wire", "msgpack", "--seed", str(seed), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    unready = kill(keeper, kills, options.life, log)
    under_load = scheduler.poll() is None
    sent = json.loads(scheduler.communicate()[0])
    got = json.loads(reader.communicate()[0])
    return reader.returncode, under_load, unready, sent, got


def transport(options, binary, kind, context):
    directory = tempfile.mkdtemp(prefix="kills-", dir=options.directory or "/dev/shm")
    port = random.randrange(20000, 30000)
    at = (lambda name, number: f"ipc://{directory}/{name}") if kind == "ipc" else (lambda name, number: f"tcp://127.0.0.1:{port + number}")
    listen, reader_at, relay_at = at("in", 0), at("out", 1), f"ipc://{directory}/relay"
    config, log = f"{directory}/afterbay.toml", f"{directory}/log"
    pathlib.Path(config).write_text(configuration(directory, listen, reader_at))
    with open(log, "wb") as out:
        if options.systemd:
            keeper, supervisor = start_systemd(binary, directory)
        else:
            keeper = subprocess.Popen([binary, "run", "--keep", "--config", config], stdout=out, stderr=out)
            supervisor = keeper.pid
    relay = Relay(context, relay_at, listen)
    relay.start()
    time.sleep(1)
    failed, done, seed = 0, 0, options.seed
    while done < options.kills:
        kills = min(options.round, options.kills - done)
        code, under_load, unready, sent, got = one_round(
            options, binary, directory, relay_at, reader_at, kills, seed, supervisor, log)
        done, seed, failed = done + kills, seed + 1, failed + (code != 0)
        rss = next(line for line in open(f"/proc/{supervisor}/status") if line.startswith("VmRSS")).split()[1]
        print(json.dumps({"transport": kind, "kills": done, "before_ready": unready, "load_to_the_end": under_load, "ok": code == 0,
                          "relayed": relay.frames, "supervisor_rss_kib": int(rss), "scheduler": sent, "reader": got}), flush=True)
        if keeper.poll() is not None:
            sys.exit(f"the keeper ended with {keeper.returncode}; log: {log}")
    relay.ends = True
    relay.join()
    # The last kill may have been a moment ago.
    while worker_of(supervisor) is None:
        time.sleep(0.01)
    time.sleep(2)
    # systemd as process 1 would go on, so its worker is stopped first and then the namespace is ended.
    if options.systemd:
        os.kill(worker_of(supervisor), signal.SIGTERM)
        time.sleep(1)
        keeper.kill()
        keeper.wait(60)
        code = 0
    else:
        keeper.send_signal(signal.SIGTERM)
        code = keeper.wait(60)
    verify = subprocess.run([binary, "journal", "verify", "--from", f"{directory}/journal"], capture_output=True, text=True)
    print(json.dumps({"transport": kind, "kills": done, "failed_rounds": failed, "supervisor": "systemd" if options.systemd else "keep", "exit": code, "verify_exit": verify.returncode}), flush=True)
    if failed or code or verify.returncode:
        print(f"kept for you to look at: {directory}\n{verify.stdout[-2000:]}{verify.stderr[-2000:]}", file=sys.stderr)
        return False
    shutil.rmtree(directory)
    return True


def main():
    options = arguments()
    random.seed(options.seed)
    binary = str(pathlib.Path(options.binary).absolute())
    context = zmq.Context()
    results = [transport(options, binary, kind, context) for kind in options.transports]
    sys.exit(0 if all(results) else 1)


main()
