#!/usr/bin/env python3
"""Measures SGLang's own readers under load: as they are, with each of SGLang's remedies, and behind Afterbay.

    make bench-real SHARED=../shared
    python3 tests/bench/real.py --shared ../shared/sglang --afterbay target/release/afterbay --n 128 --t 64

SHARED/README.md says how the real SGLang is installed (`install`). Three loads, every case in one run on one machine. All readers
freeze their heaps before the load, as the server does after its warm-up:

replayed   A fake scheduler sends batches at a fixed rate, with SGLang's own encoder, to SGLang's own detokenizer and tokenizer.
           The readers do the work of the HTTP server for each chunk. The scheduler is never the limit.
capacity   The same at rising rates: the highest load at which the first token's p99 stays below the limit.
http       SGLang's own HTTP server with a tiny model, and its own serving benchmark. The model is the limit. Only here can the Rust
           server run, because it lives in the scheduler's process.

Writes the results as JSON (--json) and renders them as the page of the book (--page). `--render` renders an earlier result.
Exits 1 if a case fails or a client misses a token.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from capacity import LIMIT_S, Failed, search
from processes import START_MAX, Processes, cpu, peak_mb, running, tree

HERE = Path(__file__).resolve().parent


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def sglang_environment(args, **more):
    environment = dict(os.environ, PYTHONWARNINGS="ignore", SGLANG_USE_PICKLE_IPC="0", SGLANG_PLUGINS="none", PYTHONDONTWRITEBYTECODE="1")
    return {**environment, **more}


# --- replayed -------------------------------------------------------------------------------------------------------------------

# The value that SGLang's documentation gives for large heaps: collections of the three generations.
GC_THRESHOLD = "20000,50,50"


@dataclass
class Remedy:
    """How the readers run. `ntok` is the number of tokens in a row, `gc` whether `--gc-threshold` is set."""

    name: str
    ntok: int = 1
    detokenizers: int = 1
    tokenizers: int = 1
    afterbay: bool = False
    gc: bool = False


REPLAYED = [
    Remedy("direct"),
    Remedy("`--gc-threshold`", gc=True),
    Remedy("`--stream-interval 4`", ntok=4),
    Remedy("`--stream-interval 4 --gc-threshold`", ntok=4, gc=True),
    Remedy("4 detokenizers", detokenizers=4),
    Remedy("2 tokenizer workers", tokenizers=2),
    Remedy("4 tokenizer workers", tokenizers=4),
    Remedy("Afterbay", afterbay=True),
    Remedy("Afterbay, `--gc-threshold`", afterbay=True, gc=True),
]

# The step of the ladder at which the search of a remedy begins: near its end, so that few steps are measured.
CAPACITY = {
    "direct": 2,
    "`--gc-threshold`": 3,
    "`--stream-interval 4`": 8,
    "`--stream-interval 4 --gc-threshold`": 10,
    "Afterbay": 11,
    "Afterbay, `--gc-threshold`": 14,
}

AFTERBAY_TOML = """\
[[stream]]
name   = "tokens"
listen = "ipc://{dir}/ingress"

[[stream.sink]]
name      = "detokenizer"
connect   = "ipc://{dir}/detok"
reader    = "detokenizer"
credit    = "{dir}/credit/detokenizer"
tokenizer = "{model}"

[[stream]]
name   = "text"
listen = "ipc://{dir}/text"
after  = "tokens"

[[stream.sink]]
name    = "tokenizer"
connect = "ipc://{dir}/tok"
reader  = "tokenizer"
credit  = "{dir}/credit/tokenizer"

[journal]
dir = "{dir}/journal"

[admin]
listen = "unix:{dir}/admin"
"""


def replayed(args, remedy):
    return replay_at(args, remedy, args.t, args.rate)


def capacity(args, remedy):
    """The highest load that the readers carry. Half of the streams join over the first half of the run, so the load over the whole
    run is half of that of all streams."""

    def p99(load):
        rate = load / args.n * 2
        result = replay_at(args, remedy, max(32, round(rate * args.capacity_s / 2)), rate)
        if result["bad"]:
            raise SystemExit(f"{remedy.name} at {load:,} tokens/s: {result['bad']} clients miss tokens")
        print(json.dumps({"load": "capacity", "offered": load, **result}), flush=True)
        return result["first_token_p99_s"]

    return {"name": remedy.name, "points": [asdict(point) for point in search(p99, CAPACITY[remedy.name])]}


def replay_at(args, remedy, t, rate):
    with tempfile.TemporaryDirectory(prefix="ab", dir="/tmp") as directory:
        processes = Processes(directory)
        try:
            return replay(args, processes, directory, remedy, t, rate)
        finally:
            processes.end()


def replay(args, processes, directory, remedy, t, rate):
    shared, python = args.shared, args.python
    part = [python, HERE / "real_part.py", shared]
    ntok, detokenizers, tokenizers, afterbay = remedy.ntok, remedy.detokenizers, remedy.tokenizers, remedy.afterbay
    environment = sglang_environment(args, **({"GC_THRESHOLD": GC_THRESHOLD} if remedy.gc else {}))
    destination = "detok"
    if afterbay:
        destination = f"ipc://{directory}/ingress"
        # As `afterbay sglang` sets it: the detokenizer sends to Afterbay, and both readers count.
        subprocess.run([args.afterbay, "connector", f"{directory}/connector"], check=True, stdout=subprocess.DEVNULL)
        environment.update(
            SGLANG_PLUGINS="afterbay",
            PYTHONPATH=f"{directory}/connector",
            AFTERBAY_INGRESS=destination,
            AFTERBAY_TEXT_INGRESS=f"ipc://{directory}/text",
            AFTERBAY_CREDIT=f"{directory}/credit",
        )
    readers = []
    if detokenizers == 1:
        command = [python, f"{shared}/real_detokenizer.py"] if tokenizers == 1 else [*part, "detokenizer_of_workers"]
        processes.start("detokenizer", [*command, "--dir", directory], environment)
        processes.wait_file(f"{directory}/detok.ready", "detokenizer")
        readers.append("detokenizer")
    else:
        for at in range(detokenizers):
            os.mkdir(f"{directory}/{at}")
            command = [python, f"{shared}/real_detokenizer.py", "--dir", f"{directory}/{at}", "--tok-name", f"ipc://{directory}/tok"]
            processes.start(f"detokenizer-{at}", command, environment)
            readers.append(f"detokenizer-{at}")
        for at in range(detokenizers):
            processes.wait_file(f"{directory}/{at}/detok.ready", f"detokenizer-{at}")
        processes.start("router", [*part, "detokenizer_router", "--dir", directory, "--number", detokenizers], environment)
        processes.wait_file(f"{directory}/router.ready", "router")
        readers.append("router")
    if afterbay:
        # Without its page a reader does not count, and the case would measure nothing.
        processes.wait_file(f"{directory}/credit/detokenizer", "detokenizer")
        config = AFTERBAY_TOML.format(dir=directory, model=f"{shared}/models/tiny-llama")
        Path(directory, "afterbay.toml").write_text(config)
        processes.start("afterbay", [args.afterbay, "run", "--config", f"{directory}/afterbay.toml"], environment)
    if tokenizers > 1:
        processes.start("router", [*part, "tokenizer_router", "--dir", directory], environment)
        processes.wait_file(f"{directory}/router.ready", "router")
        readers.append("router")
    before = {reader: cpu(processes.running[reader].pid) for reader in readers}
    for at in range(tokenizers):
        command = [python, f"{shared}/real_tokenizer.py"] if tokenizers == 1 else [*part, "tokenizer_worker", "--number", at]
        command += ["--dir", directory, "--n", args.n // tokenizers, "--with-tokenizer", "--incremental", "--sse", "--request"]
        command += ["--out", f"{directory}/tok{at}.json", "--timeout", args.timeout]
        processes.start(f"tokenizer-{at}", command, environment)
    requests = args.n // tokenizers * tokenizers
    command = [*part, "scheduler", "--dir", directory, "--n", requests, "--t", t, "--rate", rate / ntok]
    command += ["--stagger", args.stagger, "--ntok", ntok, "--dest", destination, "--pre", "--out", f"{directory}/sched.json"]
    processes.start("scheduler", command, sglang_environment(args))
    for at in range(tokenizers):
        processes.wait_end(f"tokenizer-{at}", args.timeout + START_MAX)
    reader_cpu = sum(cpu(processes.running[reader].pid) - before[reader] for reader in readers)
    reader_mb = sum(peak_mb(processes.running[reader].pid) for reader in readers)
    result = {"name": remedy.name, "afterbay_cpu_s": None, "afterbay_mb": None}
    if afterbay:
        result["afterbay_cpu_s"] = sum(cpu(pid) for pid in tree(processes.running["afterbay"].pid))
        result["afterbay_mb"] = sum(peak_mb(pid) for pid in tree(processes.running["afterbay"].pid))
    processes.wait_end("scheduler", 60)
    sent = json.loads(Path(directory, "sched.json").read_text())
    read = [json.loads(Path(directory, f"tok{at}.json").read_text()) for at in range(tokenizers)]
    reader_cpu += sum(one["cpu"] for one in read)
    result["reader_mb"] = reader_mb + sum(one["maxrss_mb"] for one in read)
    return {**result, **figures(sent, read, reader_cpu)}


def figures(sent, read, reader_cpu):
    """First tokens against the time at which their batch was sent; gaps between two chunks of every 16th client."""
    index = {rid: at for at, rid in enumerate(sent["rids"])}
    first, gaps, tokens, bad, last = [], [], 0, 0, 0.0
    for worker, one in enumerate(read):
        for number, request in enumerate(one["res"]):
            rid = f"req-{number:06d}" if len(read) == 1 else f"w{worker}-req-{number:06d}"
            first.append(request["first"] - sent["send_t"][sent["join"][index[rid]]])
            tokens += request["tokens"]
            bad += (request["fin"] or {}).get("type") != "length"
            last = max(last, request["last"])
        for chunks in one["samples"].values():
            gaps += [after[0] - before[0] for before, after in zip(chunks, chunks[1:])]
            bad += not chunks or chunks[-1][1] != sent["t"]
    chunks = sum(request["chunks"] for one in read for request in one["res"])
    return {
        "first_token_p50_s": quantile(first, 0.5),
        "first_token_p99_s": quantile(first, 0.99),
        "gap_p50_s": quantile(gaps, 0.5),
        "gap_p99_s": quantile(gaps, 0.99),
        "tokens": sent["tokens"],
        "tokens_per_s": sent["tokens"] / (last - sent["t_begin"]),
        "offered_per_s": sent["tokens"] / (sent["t_end"] - sent["t_begin"]),
        "tokens_per_chunk": sent["tokens"] / chunks,
        "reader_cpu_us": reader_cpu * 1e6 / sent["tokens"],
        "bad": bad,
    }


# --- http -----------------------------------------------------------------------------------------------------------------------

@dataclass
class Server:
    """How SGLang's server is started."""

    name: str
    arguments: tuple = ()
    rust: bool = False
    afterbay: bool = False


HTTP = [
    Server("direct"),
    Server("`--stream-interval 4`", ("--stream-interval", "4")),
    Server("4 detokenizers", ("--detokenizer-worker-num", "4")),
    Server("2 tokenizer workers", ("--tokenizer-worker-num", "2")),
    Server("4 tokenizer workers", ("--tokenizer-worker-num", "4")),
    Server("Rust server", rust=True),
    Server("Afterbay", afterbay=True),
]


def http(args, server):
    with tempfile.TemporaryDirectory(prefix="ab", dir="/tmp") as directory:
        processes = Processes(directory)
        try:
            return serve(args, processes, directory, server)
        finally:
            processes.end()


def serve(args, processes, directory, server):
    afterbay = server.afterbay
    environment = sglang_environment(args, **({"SGLANG_RUST_SERVER": "1"} if server.rust else {}))
    others = running(args.afterbay)
    if afterbay:
        environment.pop("SGLANG_PLUGINS")
        environment["WRAP"] = f"{args.afterbay} sglang --journal {directory}/journal --admin none --log-file {directory}/afterbay.log --"
    url = f"http://127.0.0.1:{args.port}"
    processes.start("server", [args.shared / "serve", "--port", args.port, *server.arguments], environment)
    end = time.monotonic() + START_MAX
    ready = ["curl", "-sf", "-m", "20", "-o", "/dev/null", f"{url}/health_generate"]
    while subprocess.run(ready, check=False).returncode != 0:
        if processes.running["server"].poll() is not None or time.monotonic() > end:
            raise Failed(f"the server did not start: {processes.log('server')}")
        time.sleep(0.5)
    # A server freezes its heaps after its warm-up, which `serve` leaves out. The Rust server has no such route.
    subprocess.run(["curl", "-sf", "-X", "POST", "-o", "/dev/null", f"{url}/freeze_gc"], check=not server.rust)
    # The launcher becomes the server, and its Afterbay is no descendant of it.
    proxies = running(args.afterbay) - others
    servers = set(tree(processes.running["server"].pid)) - proxies
    if afterbay and not proxies:
        raise Failed(f"no Afterbay runs beside the server: {processes.log('server')}")
    before = {pid: cpu(pid) for pid in servers | proxies}
    bench = [args.shared / "bench_http", args.prompts, args.concurrency, "--base-url", url]
    bench += ["--output-file", f"{directory}/bench.jsonl", "--disable-tqdm"]
    processes.start("bench", bench, environment)
    processes.wait_end("bench", args.timeout)
    spent = {pid: cpu(pid) - before[pid] for pid in before}
    said = json.loads(Path(directory, "bench.jsonl").read_text().splitlines()[-1])
    return {
        "name": server.name,
        "first_token_p50_s": said["median_ttft_ms"] / 1e3,
        "first_token_p99_s": said["p99_ttft_ms"] / 1e3,
        "gap_p50_s": said["median_itl_ms"] / 1e3,
        "gap_p99_s": said["p99_itl_ms"] / 1e3,
        "tokens_per_s": said["output_throughput"],
        "server_cpu_s": sum(spent[pid] for pid in servers),
        "server_mb": sum(peak_mb(pid) for pid in servers),
        "afterbay_cpu_s": sum(spent[pid] for pid in proxies) if afterbay else None,
        "afterbay_mb": sum(peak_mb(pid) for pid in proxies) if afterbay else None,
        "bad": args.prompts - said["completed"],
    }


# --- the run and its page -------------------------------------------------------------------------------------------------------


def facts_of_run(binary):
    """The date, the machine and the binary of a run."""
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?")
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()
    commit = next((line.split()[1] for line in said if line.startswith("commit:")), "commit unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, {platform.system()} {platform.release()}",
        "afterbay": f"{said[0]} ({commit})",
        "load_before": os.getloadavg()[0],
    }


def measure(args):
    results = {
        **facts_of_run(args.afterbay),
        "sglang": args.sglang,
        "replayed_load": {"n": args.n, "t": args.t, "rate": args.rate, "stagger": args.stagger},
        "http_load": {"prompts": args.prompts, "concurrency": args.concurrency},
        "capacity_s": args.capacity_s,
        "replayed": [],
        "capacity": [],
        "http": [],
    }
    failed = False
    searched = [remedy for remedy in REPLAYED if remedy.name in CAPACITY]
    loads = [("replayed", replayed, REPLAYED), ("capacity", capacity, searched), ("http", http, HTTP)]
    for kind, run, cases in loads:
        for case in cases if kind in args.only else []:
            begun = time.monotonic()
            try:
                result = run(args, case)
            except Failed as error:
                result = {"name": case.name, "failed": str(error)}
            result["run_s"] = time.monotonic() - begun
            result["load_average"] = os.getloadavg()[0]
            failed |= bool(result.get("failed") or result.get("bad"))
            results[kind].append(result)
            print(json.dumps({"load": kind, **result}), flush=True)
            args.json.write_text(json.dumps(results, indent=1) + "\n")
    return results, failed


def seconds(value):
    return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.0f} ms"


def cell(value, form):
    return "–" if value is None else form(value)


def table(results, heads, row):
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for result in results:
        if result.get("failed"):
            lines.append(f"| {result['name']} |" + " failed |" * (len(heads) - 1))
        else:
            lines.append("| " + " | ".join([result["name"], *row(result)]) + " |")
    return "\n".join(lines)


def replayed_row(one):
    mb = one["reader_mb"] + (one["afterbay_mb"] or 0)
    tokens = one["tokens"]
    return [
        seconds(one["first_token_p99_s"]),
        seconds(one["gap_p99_s"]),
        f"{one['tokens_per_s']:,.0f}",
        f"{one['tokens_per_chunk']:.1f}",
        f"{one['reader_cpu_us']:.1f}",
        cell(one["afterbay_cpu_s"], lambda value: f"{value * 1e6 / tokens:.1f}"),
        f"{mb:,.0f}",
    ]


def http_row(one):
    mb = one["server_mb"] + (one["afterbay_mb"] or 0)
    return [
        seconds(one["first_token_p99_s"]),
        seconds(one["gap_p99_s"]),
        f"{one['tokens_per_s']:,.0f}",
        f"{one['server_cpu_s']:.1f}",
        cell(one["afterbay_cpu_s"], lambda value: f"{value:.1f}"),
        f"{mb:,.0f}",
    ]


def capacity_table(results):
    """For each remedy the highest load that it carries, and what the next step does."""
    rows = []
    for one in results:
        points = one["points"]
        good = [point for point in points if point["p99"] is not None and point["p99"] < LIMIT_S]
        rows.append({"name": one["name"], "best": good[-1] if good else None, "next": next((p for p in points if p not in good), None)})

    def row(one):
        best, beyond = one["best"], one["next"]
        return [
            f"{best['load']:,}" if best else f"under {beyond['load']:,}",
            seconds(best["p99"]) if best else "–",
            "–" if beyond is None else "no end in time" if beyond["p99"] is None else seconds(beyond["p99"]),
        ]

    return table(rows, ["", "tokens/s", "first token p99 there", "25 % above"], row)


def render(results):
    load, served = results["replayed_load"], results["http_load"]
    every = results["replayed"] + results["capacity"] + results["http"]
    averages = [one["load_average"] for one in every]
    heads = ["", "first token p99", "gap p99", "tokens/s"]
    offered = next((f"{one['offered_per_s']:,.0f}" for one in results["replayed"] if "offered_per_s" in one), "?")
    page = (HERE / "real.md.in").read_text()
    facts = {
        "date": results["date"],
        "machine": results["machine"],
        "afterbay": results["afterbay"],
        "sglang": results["sglang"],
        "load": f"{min(averages, default=0):.1f} to {max(averages, default=0):.1f}",
        "n": f"{load['n']:,}",
        "t": str(load["t"]),
        "rate": f"{load['rate']:g}",
        "stagger": f"{load['stagger']:.0%}".replace("%", " %"),
        "offered": offered,
        "prompts": str(served["prompts"]),
        "concurrency": str(served["concurrency"]),
        "replayed": table(
            results["replayed"], [*heads, "tokens a chunk", "readers' CPU, µs a token", "Afterbay's CPU, µs a token", "memory, MiB"], replayed_row
        ),
        "capacity": capacity_table(results["capacity"]),
        "capacity_s": f"{results['capacity_s']:g}",
        "limit": f"{LIMIT_S * 1e3:.0f}",
        "http": table(results["http"], [*heads, "server's CPU, s", "Afterbay's CPU, s", "memory, MiB"], http_row),
    }
    return fill(page, facts)


def fill(page, facts):
    """A page with the facts in the places of their names."""
    for name, text in facts.items():
        page = page.replace(f"{{{{{name}}}}}", text)
    return page


def add_options(parser, engine, home, page, results):
    """The options of every engine: what to measure, and where the results go."""
    parser.add_argument("--shared", type=Path, help="the directory with run_bench.py")
    parser.add_argument("--afterbay", type=Path, help="the binary: a release build")
    parser.add_argument("--python", type=Path, default=Path(home, "venv/bin/python"), help=f"{engine}'s Python")
    parser.add_argument("--json", type=Path, default=Path(results), help="the results")
    parser.add_argument("--page", type=Path, help=page)
    parser.add_argument("--render", type=Path, metavar="JSON", help="render these results, and measure nothing")


def check_places(parser, args):
    """Ends the program if something that is measured is missing."""
    if not args.shared or not args.afterbay:
        parser.error("--shared and --afterbay are needed to measure")
    args.shared, args.afterbay = args.shared.resolve(), args.afterbay.resolve()
    if not (args.shared / "run_bench.py").exists() or not args.python.exists():
        parser.error(f"{args.shared}/run_bench.py or {args.python} is missing: run {args.shared}/install")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = os.environ.get("AFTERBAY_SGLANG_HOME") or str(Path.home() / ".cache/afterbay-sglang")
    add_options(parser, "SGLang", home, "the page to write", "target/bench-real.json")
    parser.add_argument("--n", type=int, default=2048, help="streams of the replayed load, a multiple of 4")
    parser.add_argument("--t", type=int, default=512, help="tokens of each")
    parser.add_argument("--rate", type=float, default=50, help="decode steps a second")
    parser.add_argument("--stagger", type=float, default=0.5, help="share of the streams that join later")
    parser.add_argument("--capacity-s", type=float, default=12, help="seconds for which a load of the search is offered")
    parser.add_argument("--prompts", type=int, default=256, help="requests of the http load")
    parser.add_argument("--concurrency", type=int, default=64, help="requests at once")
    parser.add_argument("--port", type=int, default=30400, help="of the HTTP server")
    parser.add_argument("--timeout", type=int, default=400, help="seconds for a case")
    parser.add_argument("--only", nargs="*", choices=["replayed", "capacity", "http"], default=["replayed", "capacity", "http"])
    args = parser.parse_args()
    failed = False
    if args.render:
        results = json.loads(args.render.read_text())
    else:
        if args.n % 4 or args.n < 4:
            parser.error(f"--n {args.n} is not a multiple of 4")
        check_places(parser, args)
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.sglang = next((path.name for path in Path(home).glob("sglang-*")), "sglang")
        results, failed = measure(args)
    if args.page:
        args.page.write_text(render(results))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
