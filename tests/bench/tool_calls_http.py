#!/usr/bin/env python3
"""Shows the events that a client of SGLang's own HTTP server receives for a tool call, while the detokenizer is behind.

    python3 tests/bench/tool_calls_http.py --shared ../shared/sglang --afterbay target/debug/afterbay

The tiny model cannot write calls. A plugin of SGLang (`register`) puts the tokens of a text with two calls in the place of the
sampled ones; everything else is the server as a user starts it. Each server gets the request twice: once as it comes, and once with
the detokenizer stopped until the model has written everything. SHARED/README.md says how SGLang is installed.

Prints the events that have calls, and a line for each case. Exits 1 if a client behind Afterbay has other calls than the model wrote.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
TEXTS = HERE.parents[1] / "host/connectors/tests/sglang"
sys.path[:0] = [str(HERE), str(TEXTS)]
import tool_call_texts as texts  # noqa: E402

PARSER = "hermes"
# The variable with the directory of the model, in the scheduler's process.
MODEL = "TOOL_CALLS_MODEL"
END_ID = 1
STOPPED_S = 20
# A machine with other work takes minutes for two servers.
START_MAX_S = 600


def register():
    """The plugin of SGLang. In the scheduler it answers each request with the text."""
    import multiprocessing

    if multiprocessing.parent_process() is None or "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from tokenizers import Tokenizer

    written = Tokenizer.from_file(f"{os.environ[MODEL]}/tokenizer.json").encode("I ask.\n" + texts.FORMATS[PARSER](texts.CALLS)).ids
    begins = {}

    def sample(ids, _runner, _logits, batch, *_args):
        for row, (rid, length) in enumerate(zip(batch.rids, batch.seq_lens.tolist())):
            at = length - begins.setdefault(rid, length)
            ids[row] = written[at] if at < len(written) else END_ID
        return ids

    HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.sample", sample, HookType.AFTER)


def detokenizer(server):
    from processes import tree

    return next(pid for pid in tree(server) if b"detokenizer" in Path(f"/proc/{pid}/cmdline").read_bytes())


def events(url):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "tools": texts.tools(texts.CALLS), "stream": True, "max_tokens": 400, "temperature": 0}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return [line.decode().strip() for line in answer if line.startswith(b"data: ")]


def events_behind(url, reader):
    """The same for a reader that is stopped while the model writes."""
    os.kill(reader, signal.SIGSTOP)
    threading.Timer(STOPPED_S, os.kill, (reader, signal.SIGCONT)).start()
    return events(url)


def run(args, directory, afterbay):
    import chat_client
    from capacity import Failed
    from processes import Processes
    from real import sglang_environment

    info = Path(directory, "plugin/tool_calls-0.dist-info")
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tool-calls\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\ntool_calls = tool_calls_http:register\n")
    sglang = next(iter(sorted(args.python.parents[2].glob("sglang-*/sglang")))).parent
    path = os.pathsep.join([str(info.parent), str(HERE), str(TEXTS), str(sglang)])
    wrap = f"env PYTHONPATH={path} "
    if afterbay:
        wrap += f"{args.afterbay} sglang --journal {directory}/journal --admin none --log-file {directory}/afterbay.log --"
    environment = sglang_environment(args, WRAP=wrap, **{MODEL: f"{args.shared}/models/tiny-gpt2"})
    environment.pop("SGLANG_PLUGINS")
    processes = Processes(directory)
    url = f"http://127.0.0.1:{args.port}"
    try:
        processes.start("server", [args.shared / "serve", "--port", args.port, "--tool-call-parser", PARSER, "--chat-template", "chatml"], environment)
        end = time.monotonic() + START_MAX_S
        while subprocess.run(["curl", "-sf", "-m", "20", "-o", "/dev/null", f"{url}/health_generate"], check=False).returncode != 0:
            if processes.running["server"].poll() is not None or time.monotonic() > end:
                raise Failed(f"the server did not start: {processes.log('server')}")
            time.sleep(1)
        pid = detokenizer(processes.running["server"].pid)
        wrong = 0
        for how, found in (("as it comes", events(url)), ("the detokenizer stopped", events_behind(url, pid))):
            content, _, calls = chat_client.read(found)
            right = calls == texts.CALLS
            wrong += not right
            print(f"{'Afterbay' if afterbay else 'direct'}, {how}: {len(found)} events, content {content!r}, calls {'right' if right else f'WRONG: {calls}'}")
            for event in found if how != "as it comes" else []:
                if "tool_calls" in event:
                    print("   ", event, flush=True)
        return wrong
    finally:
        processes.end()


def main():
    from real import check_places

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = os.environ.get("AFTERBAY_SGLANG_HOME") or str(Path.home() / ".cache/afterbay-sglang")
    parser.add_argument("--shared", type=Path, required=True, help="the directory with run_bench.py")
    parser.add_argument("--afterbay", type=Path, required=True, help="the binary")
    parser.add_argument("--python", type=Path, default=Path(home, "venv/bin/python"), help="SGLang's Python")
    parser.add_argument("--port", type=int, default=30410)
    args = parser.parse_args()
    check_places(parser, args)
    wrong = 0
    for afterbay in (False, True):
        with tempfile.TemporaryDirectory(prefix="ab", dir="/tmp") as directory:
            found = run(args, directory, afterbay)
            wrong += found if afterbay else 0
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
