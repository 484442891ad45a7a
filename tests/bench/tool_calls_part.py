"""One process of `tool_calls.py`.

    python tool_calls_part.py SHARED PART [arguments of the part]

Run by SGLang's own Python. SHARED is the directory with fake_scheduler.py. `model` makes a tokenizer that has the tokens of all
formats, `scheduler` is the fake scheduler with texts in place of random ids, and `reader` has SGLang's own
TokenizerManager and serving_chat.
"""
import argparse
import asyncio
import json
import os
import runpy
import shutil
import sys
from array import array
from pathlib import Path

SHARED, PART = sys.argv[1:3]
sys.argv = [f"{PART}.py", *sys.argv[3:]]
sys.path[:0] = [SHARED, str(Path(__file__).resolve().parents[2] / "host/connectors/tests/sglang")]
os.chdir(SHARED)
import common  # noqa: E402
import tool_call_texts as texts  # noqa: E402

PROMPT = 32


def outputs(requests):
    """The ids of the output of each request, all of one length: words fill the shorter ones."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{os.environ['AFTERBAY_MODEL']}/tokenizer.json")
    names = list(texts.FORMATS)
    calls = [texts.calls_of(names[number % len(names)], texts.longer(number // len(names))) for number in range(requests)]
    written = [tokenizer.encode(texts.FORMATS[names[number % len(names)]](calls[number])).ids for number in range(requests)]
    [word] = tokenizer.encode(" York").ids
    length = max(map(len, written)) + 8
    fill = [[word] * (length - len(ids)) for ids in written]
    from_the_start = [names[number % len(names)] in texts.FROM_THE_START for number in range(requests)]
    return [ids + more if at_start else more + ids for ids, more, at_start in zip(written, fill, from_the_start)]


def model():
    """Copies the tiny model, and adds the tokens of the texts to its tokenizer, which has words of two or three letters."""
    from tokenizers import AddedToken, Tokenizer

    directory = sys.argv[1]
    for name in ("config.json", "generation_config.json", "special_tokens_map.json", "tokenizer_config.json"):
        shutil.copy(f"{SHARED}/models/tiny-llama/{name}", directory)
    tokenizer = Tokenizer.from_file(f"{SHARED}/models/tiny-llama/tokenizer.json")
    found = {token for name, write in texts.FORMATS.items() for token in texts.tokens(write(texts.calls_of(name, texts.CALLS)))}
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in sorted(found)])
    tokenizer.save(f"{directory}/tokenizer.json")


def scheduler():
    """The fake scheduler. Each row has the next tokens of its request's text."""
    from sglang.srt.managers import io_struct

    answers = outputs(int(sys.argv[sys.argv.index("--n") + 1]))
    output, position = io_struct.BatchTokenIDOutput, {}

    def batch(**columns):
        for at, (rid, made) in enumerate(zip(columns["rids"], columns["output_ids"])):
            begin = position.get(rid, 0)
            position[rid] = begin + len(made)
            ids = array("q", answers[int(rid[len("req-") :])][begin : begin + len(made)])
            columns["output_ids"][at] = ids
            columns["decode_ids"][at] = columns["decode_ids"][at][: -len(made)] + ids
        columns["skip_special_tokens"] = [False] * len(columns["rids"])
        return output(**columns)

    io_struct.BatchTokenIDOutput = batch
    sys.argv += ["--t", str(len(answers[0]))]
    runpy.run_path(f"{SHARED}/fake_scheduler.py", run_name="__main__")


def reader():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--n", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--whole", action="store_true", help="take the connector's hooks off the parsers")
    args = parser.parse_args()
    import chat_client
    import uvloop
    from sglang.srt.plugins import load_plugins

    load_plugins()
    if args.whole:
        take_hooks_off()
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.managers.tokenizer_manager import ServerStatus, TokenizerManager
    from sglang.srt.runtime_context import publish

    arguments = common.make_server_args(skip_tokenizer_init=False, incremental=True)
    publish(arguments, role="tokenizer")
    names = list(texts.FORMATS)
    chunks, tokens = 0, len(outputs(args.n)[0])

    async def main():
        manager = TokenizerManager(arguments, common.make_port_args(args.dir))
        manager.server_status = ServerStatus.Up
        manager.max_req_input_len = 8000
        request = chat_client.request(texts.CALLS)
        generate = manager.generate_request

        async def counted(*arguments):
            nonlocal chunks
            async for chunk in generate(*arguments):
                chunks += 1
                yield chunk

        manager.generate_request = counted

        async def client(number):
            chat = chat_client.serving(texts.parser_of(names[number % len(names)]), manager)
            asked = GenerateReqInput(
                input_ids=[5 + (number + at) % 1000 for at in range(PROMPT)],
                sampling_params={"max_new_tokens": 4000, "ignore_eos": True},
                stream=True,
                rid=f"req-{number:06d}",
            )
            content, _, calls = chat_client.read([event async for event in chat._generate_chat_stream(asked, request, None)])
            return {"content": content, "calls": calls}

        answers = await asyncio.wait_for(asyncio.gather(*map(client, range(args.n))), args.timeout)
        Path(args.out).write_text(json.dumps({"answers": answers, "tokens_per_chunk": tokens * args.n / chunks}))

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.new_event_loop().run_until_complete(main())
    sys.stdout.flush()
    os._exit(0)


def take_hooks_off():
    """Leave the parsers as SGLang made them, and the other hooks in place."""
    import pkgutil

    from afterbay_sglang import tool_calls

    for target, _, _ in tool_calls.hooks():
        owner, name = target.rsplit(".", 1)
        owner = pkgutil.resolve_name(owner)
        setattr(owner, name, getattr(owner, name).__wrapped__)


{part.__name__: part for part in (model, scheduler, reader)}[PART]()
