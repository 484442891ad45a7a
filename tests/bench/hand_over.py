#!/usr/bin/env python3
"""Measures hand-overs in a row under load, with libzmq's PUSH and a reader that counts, over ipc and tcp.

    target/venv/bin/python tests/bench/hand_over.py target/release/afterbay
    target/venv/bin/python tests/bench/hand_over.py target/release/afterbay --hand-overs 10 --transport tcp --json

Needs pyzmq. `afterbay sim scheduler` makes the frames before the measurement: 200 rows each, 250 frames/s are 50,000 rows/s. The
reader compares every frame byte for byte with the frame that was sent, so lost, repeated and reordered frames are found. The time
between two frames at the reader is measured without hand-overs first, then with them. Exits 1 if a frame is lost, repeated or
changed, if a connection was closed, or if a hand-over failed.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import zmq

sys.path.insert(0, str(Path(__file__).parents[2] / "host/connectors"))
from afterbay_connector.credit import CreditPage  # noqa: E402

# Seconds without hand-overs.
QUIET = 15
# The longest wait for anything, in seconds.
WAIT = 60
STEPS = 2000


def record(afterbay, endpoint, count, rows):
    """Frames of a simulated scheduler, each with `rows` rows."""
    pull = zmq.Context.instance().socket(zmq.PULL)
    pull.rcvtimeo = WAIT * 1000
    pull.bind(endpoint)
    waves = -(-count // STEPS)
    command = [afterbay, "sim", "scheduler", "--connect", endpoint, "--wire", "msgpack", "--steps-per-second", "0"]
    command += ["--requests", str(rows * waves), "--tokens", str(STEPS), "--max-running", str(rows)]
    scheduler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    frames = [pull.recv() for _ in range(count)]
    scheduler.kill()
    scheduler.wait()
    pull.close(0)
    return frames


def send(frames, endpoint, rate, begin, stop, sent):
    """Sends the frames at their times by libzmq, until `stop` is set."""
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.sndhwm = 0
    monitor = push.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)
    push.connect(endpoint)
    begin.wait()
    start = time.monotonic()
    for number, frame in enumerate(frames):
        if stop.is_set():
            break
        wait = start + number / rate - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        push.send(frame, copy=False)
        sent["frames"] = number + 1
    events = 0
    while monitor.poll(0):
        monitor.recv_multipart()
        events += 1
    sent["connections"] = events
    sent["is_done"] = True
    stop.wait()
    push.close(linger=WAIT * 1000)
    context.term()


def read(frames, endpoint, page, loud, got):
    """Compares the frames that arrive with those that were sent, and times them."""
    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.rcvhwm = 64
    monitor = pull.get_monitor_socket(zmq.EVENT_ACCEPTED)
    pull.bind(endpoint)
    page = CreditPage(os.path.dirname(page), os.path.basename(page))
    numbers = {}
    expected, before, wrong = 0, None, {"lost": 0, "repeated": 0, "changed": 0}
    longest = {"without": 0.0, "with": 0.0}
    while not got.get("is_over"):
        if not pull.poll(100):
            continue
        frame = pull.recv()
        now = time.monotonic()
        if before is not None:
            key = "with" if loud.is_set() else "without"
            longest[key] = max(longest[key], now - before)
        before = now
        page.finished()
        if frame == frames[expected]:
            expected += 1
        else:
            numbers = numbers or {frame: number for number, frame in enumerate(frames)}
            number = numbers.get(frame)
            if number is None:
                wrong["changed"] += 1
            elif number < expected:
                wrong["repeated"] += 1
            else:
                wrong["lost"] += number - expected
                expected = number + 1
        got["frames"] = expected
    connections = 0
    while monitor.poll(0):
        monitor.recv_multipart()
        connections += 1
    got.update(wrong, longest=longest, connections=connections, is_done=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, is_so):
    end = time.monotonic() + WAIT
    while not is_so():
        if time.monotonic() > end:
            raise SystemExit(f"hand_over.py: not in {WAIT} s: {what}")
        time.sleep(0.01)


def measure(afterbay, transport, hand_overs, rate, rows, place):
    place.mkdir()
    tcp = transport == "tcp"
    endpoint = lambda name: f"tcp://127.0.0.1:{free_port()}" if tcp else f"ipc://{place}/{name}"
    listen, connect, page = endpoint("in"), endpoint("out"), f"/dev/shm/{place.parent.name}-{transport}/tokenizer"
    # A hand-over takes less than two seconds on two busy cores.
    frames = record(afterbay, f"ipc://{place}/record", int(rate * (QUIET + 2 * hand_overs + 10)), rows)
    config = place / "afterbay.toml"
    config.write_text(
        f'[[stream]]\nname = "decode"\nlisten = "{listen}"\njoin = {{ when = "never" }}\n'
        f'[[stream.sink]]\nname = "reader"\nconnect = "{connect}"\ncredit = "{page}"\nreader = "tokenizer"\n'
        f'[journal]\ndir = "{place}/journal"\nretain = {{ bytes = "2GiB" }}\n[admin]\nlisten = "unix:{place}/admin.sock"\n'
    )
    fork = multiprocessing.get_context("fork")
    with fork.Manager() as manager:
        sent, got = manager.dict(frames=0), manager.dict(frames=0)
        begin, stop, loud = manager.Event(), manager.Event(), manager.Event()
        reader = fork.Process(target=read, args=(frames, connect, page, loud, got))
        sender = fork.Process(target=send, args=(frames, listen, rate, begin, stop, sent))
        log = open(place / "log", "w")
        run = subprocess.Popen([afterbay, "run", "--config", config, "--log-format", "plain"], stderr=log, stdin=subprocess.DEVNULL)
        pid = run.pid
        try:
            reader.start()
            sender.start()
            until("the admin socket is there", lambda: (place / "admin.sock").exists())
            begin.set()
            until("frames arrive", lambda: got["frames"] > rate)
            time.sleep(QUIET)
            loud.set()
            begun, stood_still = time.monotonic(), []
            for number in range(hand_overs):
                done = subprocess.run([afterbay, "upgrade", "--config", config, "--json"], capture_output=True, text=True)
                if done.returncode != 0:
                    raise SystemExit(f"hand_over.py: hand-over {number + 1}: {done.stdout}{done.stderr}\nthe log is {place}/log")
                said = json.loads(done.stdout)
                pid = said["to_pid"]
                stood_still.append(said["stood_still_ms"])
                if sent.get("is_done"):
                    raise SystemExit("hand_over.py: the frames ran out before the hand-overs")
            seconds = time.monotonic() - begun
            time.sleep(1)
            stop.set()
            until("the sender is done", lambda: sent.get("is_done"))
            until("every frame has arrived", lambda: got["frames"] >= sent["frames"])
            # A repeated frame would follow.
            time.sleep(1)
            got["is_over"] = True
            until("the reader is done", lambda: got.get("is_done"))
            longest = got["longest"]
            return {
                "transport": transport,
                "hand_overs": hand_overs,
                "seconds": round(seconds, 1),
                "frames": sent["frames"],
                "rows": sent["frames"] * rows,
                "rows_per_second": rate * rows,
                "lost": got["lost"] + sent["frames"] - got["frames"],
                "repeated": got["repeated"],
                "changed": got["changed"],
                "sender_events": sent["connections"],
                "reader_connections": got["connections"],
                "longest_ms_without": round(longest["without"] * 1000, 1),
                "longest_ms_with": round(longest["with"] * 1000, 1),
                "ratio": round(longest["with"] / longest["without"], 1),
                "stood_still_ms_median": statistics.median(stood_still),
                "stood_still_ms_max": max(stood_still),
            }
        finally:
            for process in (sender, reader):
                process.kill()
            for ended in {pid, run.pid}:
                try:
                    os.kill(ended, 9)
                except ProcessLookupError:
                    pass
            shutil.rmtree(os.path.dirname(page), ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("afterbay", type=os.path.abspath)
    parser.add_argument("--hand-overs", type=int, default=100)
    parser.add_argument("--transport", choices=["ipc", "tcp"], action="append")
    parser.add_argument("--frames-per-second", type=int, default=250)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    place, is_good = Path(tempfile.mkdtemp(prefix="ab-hand-over-", dir="/tmp")), True
    for transport in args.transport or ["ipc", "tcp"]:
        result = measure(args.afterbay, transport, args.hand_overs, args.frames_per_second, args.rows, place / transport)
        # libzmq reports the connection once, and a disconnection as a second event.
        is_good &= not (result["lost"] or result["repeated"] or result["changed"])
        is_good &= result["sender_events"] == result["reader_connections"] == 1
        if args.json:
            print(json.dumps(result))
        else:
            print("\n".join(f"{name:>22}  {value}" for name, value in result.items()) + "\n")
    if is_good:
        shutil.rmtree(place)
    else:
        print(f"hand_over.py: failed, the logs and the journal are in {place}", file=sys.stderr)
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
