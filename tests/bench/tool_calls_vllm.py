#!/usr/bin/env python3
"""Reads tool calls with vLLM's own streaming parsers, cut into chunks, without and with the connector's hook.

    PYTHONPATH=host/connectors ~/.cache/afterbay-vllm/venv/bin/python tests/bench/tool_calls_vllm.py TOKENIZER [PARSER …]

TOKENIZER is the directory of any byte-level tokenizer; the markers of all formats are added to it. Each chunk takes the path of vLLM's
API server: its incremental detokenizer, then `parse_delta` of the class that ParserManager makes. Two calls are written (one, where a
format has only one), and compared with the calls that a client puts together. Prints a Markdown table: wrong of 200 random cuts into 1 to
40 tokens, and whether a call a chunk and all calls in one chunk are right.
"""
import json
import logging
import random
import re
import sys

A, B = {"city": "Tokyo", "unit": "celsius"}, {"city": "Paris", "unit": "utc"}
NAMES = ("get_weather", "get_time")
PROPERTIES = {"city": {"type": "string"}, "unit": {"type": "string"}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": PROPERTIES}}} for name in NAMES]
TRIALS, TOKENS_MAX = 200, 40


def call(name, arguments, key="arguments"):
    return json.dumps({"name": name, key: arguments})


def each(form, arguments):
    return "".join(form.format(k=key, v=value) for key, value in arguments.items())


def two(one, begin="", between="", close=""):
    return begin + one(NAMES[0], A), between + one(NAMES[1], B) + close


def tagged(begin, end):
    return two(lambda n, a: f"{begin}{call(n, a)}{end}")


def listed(begin, end):
    return two(call, f"{begin}[", ", ", f"]{end}")


def pythonic(begin, between, end):
    return two(lambda n, a: f"{n}({', '.join(f'{k}={json.dumps(v)}' for k, v in a.items())})", begin, between, end)


def elements(outer, inner):
    """`inner` is the form of an argument, `outer` that of a call."""
    return lambda n, a: outer.format(n=n, a=each(inner, a))


def deepseek(between, end):
    return two(lambda n, a: f"<｜tool▁call▁begin｜>{between.format(n=n)}{json.dumps(a)}{end}<｜tool▁call▁end｜>", "<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>")


coder = elements("<tool_call>\n<function={n}>\n{a}</function>\n</tool_call>", "<parameter={k}>\n{v}\n</parameter>\n")
seed = elements("<seed:tool_call>\n<function={n}>\n{a}</function>\n</seed:tool_call>", "<parameter={k}>{v}</parameter>\n")
mimo = elements("<tool_call>\n<function={n}>\n{a}</function>\n</tool_call>", "<parameter={k}>{v}</parameter>\n")
invoke = elements('<invoke name="{n}">\n{a}</invoke>\n', '<parameter name="{k}">{v}</parameter>\n')
dsml = elements('<｜DSML｜invoke name="{n}">\n{a}</｜DSML｜invoke>\n', '<｜DSML｜parameter name="{k}" string="true">{v}</｜DSML｜parameter>\n')
dsml41 = elements('<｜DSML｜ invoke name="{n}">\n{a}</｜DSML｜ invoke>\n', '<｜DSML｜ parameter name="{k}" string="true">{v}</｜DSML｜ parameter>\n')
glm = elements("<tool_call>{n}\n{a}</tool_call>", "<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n")
glm47 = elements("<tool_call>{n}{a}</tool_call>", "<arg_key>{k}</arg_key><arg_value>{v}</arg_value>")
hunyuan = elements("<tool_call>{n}<tool_sep>\n{a}</tool_call>\n", "<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n")
ifm = elements("<ifm|tool_call>{n}{a}</ifm|tool_call>", "<ifm|arg_key>{k}</ifm|arg_key><ifm|arg_value>{v}</ifm|arg_value>")
minicpm = elements('<function name="{n}">{a}</function>', '<param name="{k}">{v}</param>')
steptml = elements(
    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{n}">{a}</steptml:invoke><｜tool_call_end｜>',
    '<steptml:parameter name="{k}">{v}</steptml:parameter>',
)
NS = "]<]minimax[>["
minimax3 = elements(f'{NS}<invoke name="{{n}}">\n{{a}}{NS}</invoke>\n', f"{NS}<{{k}}>{{v}}{NS}</{{k}}>\n")
atem = elements(
    '<|start|>assistant to={n}<|message|><atem:function_calls>\n<atem:invoke name="{n}">\n{a}</atem:invoke>\n</atem:function_calls><|eom|>',
    '<atem:parameter name="{k}">{v}</atem:parameter>\n',
)
k3 = elements(
    '<|open|>call tool="{n}" index="1"<|sep|>{a}<|close|>call<|sep|>', '<|open|>argument key="{k}" type="string"<|sep|>{v}<|close|>argument<|sep|>'
)
PLAMO = "<|plamo:{}:plamo|>".format
PLAMO_JSON = PLAMO("begin_tool_arguments") + "<|plamo:constrain|>json<|plamo:msg|>"


def plamo(n, a):
    name = PLAMO("begin_tool_name") + n + PLAMO("end_tool_name")
    return PLAMO("begin_tool_request") + name + PLAMO_JSON + json.dumps(a) + PLAMO("end_tool_arguments") + PLAMO("end_tool_request")


def kimi(n, a):
    return f"<|tool_call_begin|>functions.{n}:{NAMES.index(n)}<|tool_call_argument_begin|>{json.dumps(a)}<|tool_call_end|>"


# The text of the first call, and the rest.
HERMES, QWEN, GLM47, CODER = tagged("<tool_call>", "</tool_call>"), tagged("<tool_call>\n", "\n</tool_call>\n"), two(glm47), two(coder, "", "\n")
FORMATS = {
    "apertus": two(lambda n, a: json.dumps({n: a}), "<|tools_prefix|>[", ", ", "]<|tools_suffix|>"),
    "deepseek_v3": deepseek("function<｜tool▁sep｜>{n}\n```json\n", "\n```"),
    "deepseek_v31": deepseek("{n}<｜tool▁sep｜>", ""),
    "deepseek_v32": two(dsml, "<｜DSML｜function_calls>\n", "", "</｜DSML｜function_calls>"),
    "deepseek_v4": two(dsml, "<｜DSML｜tool_calls>\n", "", "</｜DSML｜tool_calls>"),
    "deepseek_v41": two(dsml41, "<｜DSML｜ calls>\n", "", "</｜DSML｜ calls>"),
    "dots": two(invoke, "<dots_function_call>\n", "", "</dots_function_call>"),
    "ernie45": QWEN,
    "functiongemma": two(
        lambda n, a: f"<start_function_call>call:{n}{{{','.join(f'{k}:<escape>{v}<escape>' for k, v in a.items())}}}<end_function_call>"
    ),
    "gemma4": two(lambda n, a: f"<|tool_call>call:{n}{{" + ",".join(f'{k}:<|"|>{v}<|"|>' for k, v in a.items()) + "}<tool_call|>"),
    "gigachat3": (f"<|function_call|>{call(NAMES[0], A)}", ""),
    "glm45": two(glm, "", "\n"),
    "glm47": GLM47,
    "granite": listed("<|tool_call|>", ""),
    "granite-20b-fc": two(lambda n, a: f"<function_call> {call(n, a)}"),
    "granite4": HERMES,
    "hermes": HERMES,
    "hunyuan_a13b": listed("<tool_calls>", "</tool_calls>"),
    "hy_v3": two(hunyuan, "<tool_calls>\n", "", "</tool_calls>"),
    "hy_v4": two(glm47, "<tool_calls>", "", "</tool_calls>"),
    "inkling": two(
        lambda n, a: f"<|message_model|><|content_invoke_tool_json|>{json.dumps({'name': n, 'args': a})}<|end_message|>"
    ),
    "internlm": (f"<|action_start|><|plugin|>{call(NAMES[0], A, 'parameters')}<|action_end|>", ""),
    "jamba": listed("<tool_calls>", "</tool_calls>"),
    "k2_horizon": two(ifm, "<ifm|tool_calls>", "", "</ifm|tool_calls>"),
    "kimi_k2": two(kimi, "<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
    "kimi_k3": two(k3, "<|open|>tools<|sep|>", "", "<|close|>tools<|sep|>"),
    "lfm2": pythonic("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
    "ling3": GLM47,
    "llama3_json": two(lambda n, a: call(n, a, "parameters"), "<|python_tag|>", "; "),
    "llama4_json": two(lambda n, a: call(n, a, "parameters"), "", "; "),
    "llama4_pythonic": pythonic("<|python_start|>[", ", ", "]<|python_end|>"),
    "longcat": tagged("<longcat_tool_call>", "</longcat_tool_call>"),
    "mimo": two(mimo, "", "\n"),
    "minicpm5": two(minicpm),
    "minimax_m2": two(invoke, "<minimax:tool_call>\n", "", "</minimax:tool_call>"),
    "minimax_m3": two(minimax3, f"{NS}<tool_call>\n", "", f"{NS}</tool_call>"),
    "mistral": two(lambda n, a: f"[TOOL_CALLS]{n}{json.dumps(a)}"),
    "muse": two(atem),
    "muse_glimmer": two(atem),
    "olmo3": pythonic("<function_calls>", "\n", "</function_calls>"),
    "phi4_mini_json": listed("functools", ""),
    "plamo3": two(plamo, PLAMO("begin_tool_requests"), "", PLAMO("end_tool_requests")),
    "poolside_v1": two(glm, "", "\n"),
    "pythonic": pythonic("[", ", ", "]"),
    "qwen3_coder": CODER,
    "qwen3_json": QWEN,
    "qwen3_xml": CODER,
    "seed_oss": two(seed, "", "\n"),
    "step3": two(steptml, "<｜tool_calls_begin｜>", "", "<｜tool_calls_end｜>"),
    "step3p5": CODER,
    "step5": CODER,
    "xlam": listed("", ""),
}
MARKER = re.compile(r"</?[^<>\s\"'{}()=,;]{2,40}>|<\|\"\|>|<\|tool_call>|<tool_call\|>|\[TOOL_CALLS\]|｜DSML｜")


def main():
    logging.disable(logging.CRITICAL)
    from transformers import PreTrainedTokenizerFast

    directory, *names = sys.argv[1:]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    # Parsers look up these, which the calls do not need.
    needed = ["<think>", "</think>", "<|end|>", "<|channel>", "<channel|>", "<|eot|>", "<|content_text|>", "<|content_thinking|>"]
    needed += ["<|content_invoke_tool_text|>", "<|content_tool_error|>", "<|content_model_end_sampling|>", "<|tool_response>", "<|turn>", "<turn|>"]
    markers = sorted({marker for parts in FORMATS.values() for marker in MARKER.findall("".join(parts))} | set(needed))
    tokenizer.add_tokens(markers)
    from vllm.tool_parsers import ToolParserManager

    registered = ToolParserManager.list_registered()
    print("| parser | one token a chunk | random cuts | a call a chunk | one chunk | with the hook: random cuts | a call a chunk | one chunk |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names or registered:
        if name not in FORMATS:
            print(f"| {name} | not tried: no format here |")
            continue
        try:
            print(row(name, tokenizer), flush=True)
        except Exception as error:
            print(f"| {name} | not tried: {type(error).__name__}: {str(error)[:100]} |", flush=True)


def row(name, tokenizer):
    from vllm.parser.parser_manager import ParserManager

    from afterbay_vllm.tool_calls import by_token

    head, rest = (tokenizer.encode(text, add_special_tokens=False) for text in FORMATS[name])
    want = [[NAMES[0], A], [NAMES[1], B]][: 2 if rest else 1]
    ids = head + rest
    cells, random_cuts = [], [list(cut(ids, random.Random(seed))) for seed in range(TRIALS)]
    for hook in (None, by_token):
        options = dict(tool_parser_name=name, enable_auto_tools=True, reasoning_parser_name=name if name in ("gemma4",) else None)
        make = hook(ParserManager.get_parser, **options) if hook else ParserManager.get_parser(**options)
        if make is None:
            raise LookupError("ParserManager has no class")
        right = ["WRONG", "right"]
        if hook is None:
            cells.append(right[read(make, tokenizer, [[token] for token in ids]) == want])
        cells.append(f"{sum(read(make, tokenizer, chunks) != want for chunks in random_cuts)} of {TRIALS} wrong")
        cells += [right[read(make, tokenizer, chunks) == want] for chunks in ([head, rest], [ids])]
    return f"| {name} | " + " | ".join(cells) + " |"


def cut(ids, rnd):
    while ids:
        size = rnd.randint(1, TOKENS_MAX)
        yield ids[:size]
        ids = ids[size:]


def request_for(parser):
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "hi"}], tools=TOOLS, tool_choice="auto", stream=True)
    return parser.adjust_request(request)


def read(make, tokenizer, chunks):
    """The calls that a client gets: [[name, arguments or the broken text], …]."""
    from afterbay_vllm.tool_calls import decoder
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    parser = make(tokenizer, ChatCompletionRequest(model="m", messages=[], tools=TOOLS).tools, chat_template_kwargs={"enable_thinking": False})
    request, prompt = request_for(parser), tokenizer.encode("hi", add_special_tokens=False)
    decode, calls = decoder(tokenizer, request, prompt), {}
    for number, ids in enumerate([*filter(None, chunks), [tokenizer.eos_token_id]], 1):
        finished = number > len([*filter(None, chunks)])
        text = "" if finished else "".join(map(decode, ids))
        try:
            message = parser.parse_delta(text, list(ids), request, prompt_token_ids=prompt, finished=finished)
        except Exception as error:
            return [[type(error).__name__, str(error)]]
        for delta in message.tool_calls if message else ():
            one = calls.setdefault(delta.index, ["", ""])
            one[0] += (delta.function.name if delta.function else None) or ""
            one[1] += (delta.function.arguments if delta.function else None) or ""
    return [[name, arguments_of(text)] for _, (name, text) in sorted(calls.items())]


def arguments_of(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    main()
