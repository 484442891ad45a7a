#!/usr/bin/env python3
"""The memory of `afterbay run` while requests come and go beside a reader that is always behind: its curve must be flat.

A simulated scheduler begins RATE requests a second, each of a few tokens, and a simulated reader spends its time on each row, so
that rows always wait and are joined. More requests run at once (RATE * TOKENS / STEPS) than a composed frame has room for, so that
some always wait. Prints the requests so far, the resident memory, the waiting rows and the joined ones.

    python tests/bench/churn.py --binary target/release/afterbay --minutes 60
"""
import argparse
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.request

CONFIG = """
[[stream]]
name = "decode"
listen = "ipc://{dir}/in"
join = {{ max_rows = {max_rows} }}
[[stream.sink]]
name = "reader"
connect = "ipc://{dir}/out"
credit = "{dir}/credit"
reader = "tokenizer"
[journal]
dir = "{dir}/journal"
segment = "16MiB"
retain = {{ bytes = "256MiB" }}
[admin]
listen = "127.0.0.1:{port}"
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/release/afterbay")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=int, default=2500, help="requests that begin in a second")
    parser.add_argument("--tokens", type=int, default=30, help="tokens of a request")
    parser.add_argument("--steps", type=int, default=50, help="frames in a second")
    parser.add_argument("--behind", type=float, default=3, help="rows that come for each row that the reader has time for")
    parser.add_argument("--max-rows", type=int, default=512, help="requests in a composed frame")
    parser.add_argument("--every", type=float, default=10, help="seconds between two lines")
    parser.add_argument("--port", type=int, default=29371)
    return parser.parse_args()


def metric(text, name):
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


def main():
    options = arguments()
    directory = tempfile.mkdtemp(prefix="churn-", dir="/dev/shm")
    pathlib.Path(directory, "afterbay.toml").write_text(CONFIG.format(dir=directory, port=options.port, max_rows=options.max_rows))
    requests = int(options.rate * (options.minutes + 1) * 60)
    per_row = options.behind / (options.rate * options.tokens)
    with open(f"{directory}/log", "wb") as log:
        run = subprocess.Popen([options.binary, "run", "--config", f"{directory}/afterbay.toml"], stdout=log, stderr=log)
        peers = [
            subprocess.Popen([options.binary, "sim", "reader", "--bind", f"ipc://{directory}/out", "--credit", f"{directory}/credit",
                              "--requests", str(requests), "--cost-per-chunk", f"{per_row * 1e6:.0f}us"], stdout=log, stderr=log),
            subprocess.Popen([options.binary, "sim", "scheduler", "--connect", f"ipc://{directory}/in", "--requests", str(requests),
                              "--tokens", str(options.tokens), "--rate", str(options.rate), "--steps-per-second", str(options.steps)],
                             stdout=log, stderr=log)]
    try:
        began = time.monotonic()
        print("seconds  requests  resident MiB  waiting rows  rows joined", flush=True)
        while time.monotonic() - began < options.minutes * 60:
            time.sleep(options.every)
            text = urllib.request.urlopen(f"http://127.0.0.1:{options.port}/metrics").read().decode()
            status = pathlib.Path(f"/proc/{run.pid}/status").read_text()
            resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024
            print(f"{time.monotonic() - began:7.0f} {metric(text, 'afterbay_requests_opened_total'):9.0f} {resident:13.1f} "
                  f"{metric(text, 'afterbay_sink_waiting_rows'):13.0f} {metric(text, 'afterbay_sink_rows_joined_total'):12.0f}", flush=True)
    finally:
        for process in [*peers, run]:
            process.kill()
            process.wait()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
