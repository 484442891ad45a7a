#!/usr/bin/env python3
"""Measures vLLM's own front ends under load: as they are, and behind Afterbay.

    make bench-real SHARED=../shared
    python3 tests/bench/real_vllm.py --shared ../shared/vllm --afterbay target/release/afterbay --n 128

SHARED/README.md says how the real vLLM is installed (`install`). A fake EngineCore sends steps at a fixed rate, with vLLM's own
encoder, so that the engine is never the limit. Three loads, every case in one run on one machine:

engine     AsyncLLM in one process, which also makes the OpenAI chunk of each output: below its limit and above.
capacity   The same at rising rates: the highest load at which the first token's p99 stays below the limit.
http       the whole API server, with a client for each stream. Only here can the Rust front end run.

Writes the results as JSON (--json) and renders them as a section of the book's page (--page). `--render` renders an earlier result.
Exits 1 if a case fails, a client misses a token, or the text of two cases differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

from capacity import LIMIT_S, Failed, search
from processes import cpu, peak_mb, running
from real import HERE, add_options, capacity_table, cell, check_places, facts_of_run, fill, seconds, table

AFTERBAY_TOML = """\
[[stream]]
name   = "vllm"
engine = "vllm"
listen = "ipc://{dir}/ingress"

[[stream.sink]]
name       = "api-server"
connect    = "ipc://{dir}/out"
tool_calls = "joined"
{credit}
[journal]
dir = "{dir}/journal"

[admin]
listen = "unix:{dir}/admin"
"""

# The name, more arguments of run_bench.py, and whether Afterbay stands between.
ENGINE = [("direct", [], False), ("`--stream-interval 4`", ["--stream-interval", "4"], False), ("Afterbay", [], True)]
# The step of the ladder at which the search of each begins.
CAPACITY = {"direct": 3, "`--stream-interval 4`": 9, "Afterbay": 12}

# The name, the front end, and whether Afterbay stands between.
HTTP = [("direct", "python", False), ("Afterbay", "python", True), ("Rust front end", "rust", False), ("Rust front end, Afterbay", "rust", True)]


class Watch:
    """The CPU seconds and the peak memory of the Afterbay that a bench starts and kills."""

    def __init__(self, binary):
        self.binary, self.others = binary, running(binary)
        self.cpu, self.mb, self.ended = 0.0, 0.0, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.ended.wait(0.1):
            mine = running(self.binary) - self.others
            self.cpu = max(self.cpu, sum(cpu(pid) for pid in mine))
            self.mb = max(self.mb, sum(peak_mb(pid) for pid in mine))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def bench(args, script, arguments, afterbay, credit=True):
    """One run of a script of SHARED. Returns its row, with Afterbay's cost."""
    with tempfile.TemporaryDirectory(prefix="ab", dir="/tmp") as directory:
        environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", AFTERBAY_BENCH_CONNECTOR=f"{directory}/connector")
        command = [args.python, HERE / "real_vllm_part.py", args.shared, script, *arguments, "--json", f"{directory}/row.jsonl"]
        command += ["--n", args.n, "--timeout", args.timeout]
        if afterbay:
            subprocess.run([args.afterbay, "connector", f"{directory}/connector"], check=True, stdout=subprocess.DEVNULL)
            # The script replaces {dir} by the directory of its sockets.
            config = AFTERBAY_TOML.format(dir="@DIR@", credit='credit  = "@DIR@/credit/api-server-0"\n' if credit else "")
            Path(directory, "afterbay.toml").write_text(config)
            proxy = f"sed 's#@DIR@#{{dir}}#g' {directory}/afterbay.toml >{{dir}}/afterbay.toml && exec {args.afterbay} run --config {{dir}}/afterbay.toml"
            command += ["--send-to", "ingress", "--proxy", proxy]
        with Watch(args.afterbay) as watch:
            try:
                done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True, timeout=args.timeout + 300)
            except subprocess.TimeoutExpired as error:
                raise Failed(str(error)) from None
        if done.returncode != 0:
            raise Failed(f"{script} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
        row = json.loads(Path(directory, "row.jsonl").read_text().splitlines()[-1])
        cost = {"afterbay_cpu_s": watch.cpu, "afterbay_mb": watch.mb} if afterbay else {"afterbay_cpu_s": None, "afterbay_mb": None}
        if afterbay and not watch.cpu:
            raise Failed(f"no Afterbay ran: {(done.stdout + done.stderr)[-1500:]}")
        return {**row, **cost}


def engine(args, _name, arguments, afterbay, t, rate):
    load = ["--t", t, "--rate", rate, "--stagger", args.stagger, "--sse", "--text", *arguments]
    return bench(args, "run_bench.py", load, afterbay)


def capacity(args, name, arguments, afterbay):
    def p99(load):
        rate = load / args.n * 2
        result = engine(args, name, arguments, afterbay, max(32, round(rate * args.capacity_s / 2)), rate)
        if result["bad"]:
            raise SystemExit(f"{name} at {load:,} tokens/s: {result['bad']} clients miss tokens")
        print(json.dumps({"load": "capacity", "offered": load, **result}), flush=True)
        return result["ttft99"]

    return {"name": name, "points": [asdict(point) for point in search(p99, CAPACITY[name])]}


def http(args, _name, front, afterbay):
    load = ["--t", args.http_t, "--rate", args.http_rate, "--stagger", args.stagger, "--front", front, "--text"]
    return bench(args, "http_bench.py", load, afterbay, credit=front == "python")


def measure(args):
    results = {
        **facts_of_run(args.afterbay),
        "vllm": args.vllm,
        "n": args.n,
        "stagger": args.stagger,
        "engine_loads": [{"t": round(rate * args.engine_s / 2), "rate": rate} for rate in args.rates],
        "http_load": {"t": args.http_t, "rate": args.http_rate},
        "engine": [],
        "capacity": [],
        "http": [],
    }
    loads = [("engine", engine, (*case, *load.values())) for load in results["engine_loads"] for case in ENGINE]
    loads += [("capacity", capacity, case) for case in ENGINE] + [("http", http, case) for case in HTTP]
    for kind, run, (name, *case) in loads:
        if kind in args.only:
            begun = time.monotonic()
            try:
                result = {"name": name, **run(args, name, *case)}
            except Failed as error:
                result = {"name": name, "failed": str(error)}
            result["run_s"] = time.monotonic() - begun
            result["load_average"] = os.getloadavg()[0]
            results[kind].append(result)
            print(json.dumps({"load": kind, **result}), flush=True)
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(results, indent=1) + "\n")
    return results


def problems(results):
    """The reasons why the run is not good."""
    for kind in ("engine", "http"):
        good = [one for one in results[kind] if not one.get("failed")]
        yield from (f"{kind}, {one['name']}: {one['failed']}" for one in results[kind] if one.get("failed"))
        yield from (f"{kind}, {one['name']}: {one['bad']} clients miss tokens" for one in good if one["bad"])
        # The two front ends of vLLM give characters of several tokens out in different pieces.
        for same in {(one.get("front"), one["t"]) for one in good}:
            texts = [(one["name"], one["text"]) for one in good if (one.get("front"), one["t"]) == same]
            if len({text for _, text in texts}) > 1:
                yield f"{kind}: the texts differ: {texts}"


def figures(tokens):
    """A row of a table, of a load with so many tokens."""
    return lambda one: [
        seconds(one["ttft99"]),
        f"{one['tok_s']:,.0f}",
        f"{tokens / one['chunks']:.1f}",
        f"{one['us_per_tok']:.1f}",
        cell(one["afterbay_cpu_s"], lambda value: f"{value * 1e6 / tokens:.1f}"),
    ]


def render(results):
    heads = ["", "first token p99", "tokens/s", "tokens a chunk", "front end's CPU, µs a token", "Afterbay's CPU, µs a token"]
    n, served = results["n"], results["http_load"]
    averages = [one["load_average"] for one in results["engine"] + results["capacity"] + results["http"]]
    tables = []
    for at, load in enumerate(results["engine_loads"]):
        cases = results["engine"][at * len(ENGINE) : (at + 1) * len(ENGINE)]
        said = f"{load['t']} tokens a stream, {load['rate']:g} steps a second, {n * load['rate'] / 2:,.0f} tokens/s offered:"
        tables.append(f"{said}\n\n{table(cases, heads, figures(n * load['t']))}")
    facts = {
        **{key: results[key] for key in ("date", "machine", "afterbay", "vllm")},
        "load": f"{min(averages, default=0):.1f} to {max(averages, default=0):.1f}",
        "n": f"{n:,}",
        "stagger": f"{results['stagger']:.0%}".replace("%", " %"),
        "http_t": str(served["t"]),
        "http_rate": f"{served['rate']:g}",
        "engine": "\n\n".join(tables),
        "capacity": capacity_table(results["capacity"]),
        "limit": f"{LIMIT_S * 1e3:.0f}",
        "http": table(results["http"], heads, figures(n * served["t"])),
    }
    return fill((HERE / "real_vllm.md.in").read_text(), facts)


def put(section, page):
    """Puts the section into the page of SGLang's readers, in the place of an earlier one."""
    text = page.read_text()
    before, own, after = text.partition("\n## vLLM\n")
    if own:
        text = before + "\n## " + after.split("\n## ", 1)[1]
    before, last, after = text.partition("\n## Which one to use\n")
    page.write_text(before + "\n" + section + last + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = os.environ.get("AFTERBAY_VLLM_HOME") or str(Path.home() / ".cache/afterbay-vllm")
    add_options(parser, "vLLM", home, "the page to put the section into", "target/bench-real-vllm.json")
    parser.add_argument("--n", type=int, default=512, help="streams")
    parser.add_argument("--rates", type=float, nargs="*", default=[80, 320], help="decode steps a second, for AsyncLLM")
    parser.add_argument("--engine-s", type=float, default=6.4, help="seconds for which they are offered")
    parser.add_argument("--capacity-s", type=float, default=12, help="seconds for which a load of the search is offered")
    parser.add_argument("--stagger", type=float, default=0.5, help="share of the streams that join later")
    parser.add_argument("--http-t", type=int, default=128, help="tokens of each, over HTTP")
    parser.add_argument("--http-rate", type=float, default=40, help="decode steps a second, over HTTP")
    parser.add_argument("--timeout", type=int, default=200, help="seconds for a case")
    parser.add_argument("--only", nargs="*", choices=["engine", "capacity", "http"], default=["engine", "capacity", "http"])
    args = parser.parse_args()
    if args.render:
        results = json.loads(args.render.read_text())
    else:
        check_places(parser, args)
        args.json = args.json.absolute()
        said = subprocess.run([args.python, "-c", "import importlib.metadata as m; print(m.version('vllm'))"], capture_output=True, text=True)
        args.vllm = f"vLLM {said.stdout.strip() or '?'}"
        results = measure(args)
    wrong = list(problems(results))
    for problem in wrong:
        print(problem, file=sys.stderr)
    if args.page:
        put(render(results), args.page)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
