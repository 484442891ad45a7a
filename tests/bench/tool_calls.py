#!/usr/bin/env python3
"""Counts the clients of SGLang whose tool calls are not those that the model wrote, while the readers are behind.

    python3 tests/bench/tool_calls.py --shared ../shared/sglang --afterbay target/debug/afterbay

A fake scheduler sends texts with two tool calls, in the format of each parser of SGLang, as tokens of a tiny model. They go through
SGLang's own detokenizer, tokenizer and serving_chat, faster than these can read. `without pieces` is a reader whose connector
counts frames and does not divide chunks for the parsers. SHARED/README.md says how the real SGLang is installed.

Prints a Markdown table with a row for each format. Exits 1 if a client of a case with pieces has other calls, except for formats
that SGLang itself reads wrong at one token a chunk.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from capacity import Failed
from processes import Processes
from real import AFTERBAY_TOML, check_places, sglang_environment

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "host/connectors/tests/sglang"))
import tool_call_texts as texts  # noqa: E402

# The name, the tokens in a row, whether Afterbay stands between, whether it has guards, and whether the connector divides chunks
# (None: there is no connector).
CASES = [
    ("direct", 1, False, False, None),
    ("`--stream-interval 4`", 4, False, False, None),
    ("Afterbay, without pieces", 1, True, False, False),
    ("grammar-check, without pieces", 1, True, True, False),
    ("`--stream-interval 4`, connector", 4, False, False, True),
    ("Afterbay", 1, True, False, True),
    ("grammar-check", 1, True, True, True),
    ("4 tokens a row, Afterbay", 4, True, False, True),
]
# The formats of grammar-check, and the parsers that read them.
GUARDED = {
    "hermes": ("hermes", "qwen", "qwen25", "qwen3_coder", "step3p5", "nanbeige", "trinity"),
    "llama": ("llama3",),
    "mistral": ("mistral", "mistral (list)"),
    "deepseek": ("deepseekv3", "deepseekv31"),
    "harmony": ("gpt-oss",),
}

GUARD_TOML = """
[[stream.plugin]]
name      = "{name}"
component = "builtin:grammar-check"
settings  = {{ tool_calls = "{name}", tools = '{tools}' }}
"""


def run(args, directory, ntok, afterbay, guards, divided):
    processes = Processes(directory)
    try:
        return replay(args, processes, directory, ntok, afterbay, guards, divided)
    finally:
        processes.end()


def replay(args, processes, directory, ntok, afterbay, guards, divided):
    part = [args.python, HERE / "tool_calls_part.py", args.shared]
    model = f"{args.model}"
    environment = sglang_environment(args, AFTERBAY_MODEL=model)
    destination = "detok"
    if divided is not None:
        subprocess.run([args.afterbay, "connector", f"{directory}/connector"], check=True, stdout=subprocess.DEVNULL)
        environment.update(SGLANG_PLUGINS="afterbay", PYTHONPATH=f"{directory}/connector", AFTERBAY_CREDIT=f"{directory}/credit")
    if afterbay:
        destination = f"ipc://{directory}/ingress"
        environment.update(AFTERBAY_INGRESS=destination, AFTERBAY_TEXT_INGRESS=f"ipc://{directory}/text")
    processes.start("detokenizer", [args.python, f"{args.shared}/real_detokenizer.py", "--dir", directory], environment)
    processes.wait_file(f"{directory}/detok.ready", "detokenizer")
    if afterbay:
        config = AFTERBAY_TOML.format(dir=directory, model=model)
        if guards:
            tools = json.dumps(texts.tools(texts.CALLS))
            plugins = "".join(GUARD_TOML.format(name=name, tools=tools) for name in GUARDED)
            config = config.replace('\n[[stream]]\nname   = "text"', f'{plugins}\n[[stream]]\nname   = "text"')
        Path(directory, "afterbay.toml").write_text(config)
        processes.start("afterbay", [args.afterbay, "run", "--config", f"{directory}/afterbay.toml"], environment)
    requests = len(texts.FORMATS) * args.streams
    reader = [*part, "reader", "--dir", directory, "--n", requests, "--out", f"{directory}/tok.json", "--timeout", args.timeout]
    processes.start("reader", reader + ["--whole"] * (divided is False), environment)
    scheduler = [*part, "scheduler", "--dir", directory, "--n", requests, "--rate", args.rate / ntok, "--ntok", ntok, "--dest", destination]
    processes.start("scheduler", [*scheduler, "--pre", "--out", f"{directory}/sched.json"], environment)
    processes.wait_end("reader", args.timeout + 240)
    return json.loads(Path(directory, "tok.json").read_text())


def wrong(answers):
    """The number of clients with wrong calls, by format, and an example of each."""
    names, found, examples = list(texts.FORMATS), dict.fromkeys(texts.FORMATS, 0), {}
    for number, answer in enumerate(answers):
        name = names[number % len(names)]
        if answer["calls"] != texts.calls_of(name, texts.longer(number // len(names))):
            found[name] += 1
            examples.setdefault(name, answer["calls"])
    return found, examples


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = os.environ.get("AFTERBAY_SGLANG_HOME") or str(Path.home() / ".cache/afterbay-sglang")
    parser.add_argument("--shared", type=Path, required=True, help="the directory with run_bench.py")
    parser.add_argument("--afterbay", type=Path, required=True, help="the binary")
    parser.add_argument("--python", type=Path, default=Path(home, "venv/bin/python"), help="SGLang's Python")
    parser.add_argument("--streams", type=int, default=6, help="clients of each format")
    parser.add_argument("--rate", type=float, default=100, help="tokens a second of each stream")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for a case")
    parser.add_argument("--cases", nargs="*", default=[case[0] for case in CASES], help="names of cases")
    args = parser.parse_args()
    check_places(parser, args)
    columns, failed = [], False
    guarded = {format_ for formats in GUARDED.values() for format_ in formats}
    with tempfile.TemporaryDirectory(prefix="abm", dir="/tmp") as model:
        args.model = model
        subprocess.run([args.python, HERE / "tool_calls_part.py", args.shared, "model", model], check=True)
        for name, ntok, afterbay, guards, divided in CASES:
            if name not in args.cases:
                continue
            with tempfile.TemporaryDirectory(prefix="ab", dir="/tmp") as directory:
                try:
                    read = run(args, directory, ntok, afterbay, guards, divided)
                except Failed as error:
                    sys.exit(f"{name}: {error}")
            bad, examples = wrong(read["answers"])
            print(json.dumps({"case": name, "tokens_per_chunk": read["tokens_per_chunk"], "bad": bad, "examples": examples}), file=sys.stderr, flush=True)
            # A guard of another format ends a request in whose calls it finds none of its own.
            judged = set(guarded if guards else texts.FORMATS) - set(texts.WRONG_IN_SGLANG)
            failed |= divided is True and any(bad[format_] for format_ in judged)
            columns.append((name, bad, read["tokens_per_chunk"], guards))
    print("| format | " + " | ".join(column[0] for column in columns) + " |\n|---|" + "---:|" * len(columns))
    print("| *tokens a chunk* | " + " | ".join(f"{column[2]:.1f}" for column in columns) + " |")
    for format_ in texts.FORMATS:
        cells = ["–" if guards and format_ not in guarded else str(bad[format_]) for _, bad, _, guards in columns]
        print(f"| {format_} | " + " | ".join(cells) + " |")
    print("| **all** | " + " | ".join(str(sum(bad.values())) for _, bad, _, _ in columns) + " |")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
