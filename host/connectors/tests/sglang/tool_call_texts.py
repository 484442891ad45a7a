"""Texts with two tool calls, in the format of each parser that SGLang 0.5.23 registers. This module needs no engine."""
import json
import random
import re

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string"},
        "days": {"type": "integer"},
        "at": {"type": "array", "items": {"type": "string"}},
    },
}
CALLS = [["get_weather", {"city": "New York", "unit": "celsius"}], ["get_time", {"city": "Paris", "unit": "utc"}]]
# A name is a part of the other, a number has several digits, a text has characters that JSON and XML escape.
RICH_CALLS = [
    ["get_weather", {"city": 'São "Paulo"\n日本 😀', "days": 1234, "at": ["a", "b, [c]"]}],
    ["get_weather_of", {"city": "x" * 40 + " {y} é", "days": 7, "at": ["d"]}],
]


def tools(calls):
    return [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name, _ in calls]


def _json(value):
    return json.dumps(value, ensure_ascii=False)


def _value(value):
    """A value between tags: a text as it is."""
    return value if isinstance(value, str) else _json(value)


def _call(name, arguments, key="arguments", name_key="name"):
    return _json({name_key: name, key: arguments})


def _each(pattern, between=""):
    """A format in which calls follow each other. `pattern` makes the text of one."""
    return lambda calls: between.join(pattern(*call) for call in calls)


def _keyed(name, arguments, head="<tool_call>{}\n", pair="<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", tail="</tool_call>"):
    return head.format(name) + "".join(pair.format(key, _value(value)) for key, value in arguments.items()) + tail


def _coder(name, arguments):
    return _keyed(name, arguments, "<tool_call>\n<function={}>\n", "<parameter={}>\n{}\n</parameter>\n", "</function>\n</tool_call>")


def _deepseek_v3(name, arguments):
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_json(arguments)}\n```<｜tool▁call▁end｜>"


def _dsml(tag, block):
    def invoke(name, arguments):
        pairs = [
            f'<｜DSML｜{tag("parameter")} name="{key}" string="{_json(isinstance(value, str))}">{_value(value)}</｜DSML｜{tag("parameter")}>\n'
            for key, value in arguments.items()
        ]
        return f'<｜DSML｜{tag("invoke")} name="{name}">\n{"".join(pairs)}</｜DSML｜{tag("invoke")}>\n'

    return lambda calls: f"<｜DSML｜{block}>\n{_each(invoke)(calls)}</｜DSML｜{block}>"


def _gigachat35(calls):
    return _dsml(str, "tool_calls")(calls).replace("DSML", "GCML")


def _invoke(name, arguments):
    return _keyed(name, {}, '<invoke name="{}">\n', tail="") + "".join(f'<parameter name="{key}">{_value(value)}</parameter>\n' for key, value in arguments.items()) + "</invoke>\n"


def _minimax_m3(calls):
    ns = "]<]minimax[>["

    def value(one):
        return "".join(f"{ns}<item>{_value(item)}{ns}</item>" for item in one) if isinstance(one, list) else _value(one)

    def invoke(name, arguments):
        pairs = [f"{ns}<{key}>{value(one)}{ns}</{key}>" for key, one in arguments.items()]
        return f'{ns}<invoke name="{name}">{"".join(pairs)}{ns}</invoke>\n'

    return f"{ns}<tool_call>\n{_each(invoke)(calls)}{ns}</tool_call>"


def _gemma4(name, arguments):
    def value(one):
        if isinstance(one, list):
            return "[" + ",".join(map(value, one)) + "]"
        return f'<|"|>{one}<|"|>' if isinstance(one, str) else _json(one)

    pairs = [f"{key}:{value(one)}" for key, one in arguments.items()]
    return f"<|tool_call>call:{name}{{{','.join(pairs)}}}<tool_call|>"


def _kimi_k2(calls):
    each = [
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{_json(arguments)}<|tool_call_end|>" for number, (name, arguments) in enumerate(calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(each)}<|tool_calls_section_end|>"


def _kimi_k3(calls):
    def argument(key, value):
        kind = {str: "string", int: "number", list: "array"}[type(value)]
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{_value(value)}<|close|>argument<|sep|>'

    each = [
        f'<|open|>call tool="{name}" index="{number}"<|sep|>{"".join(argument(*pair) for pair in arguments.items())}<|close|>call<|sep|>'
        for number, (name, arguments) in enumerate(calls, 1)
    ]
    return f"<|open|>tools<|sep|>{''.join(each)}<|close|>tools<|sep|>"


def _python(calls):
    return ", ".join(f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" for name, arguments in calls)


def _muse(calls):
    def invoke(name, arguments):
        pairs = [f'<atem:parameter name="{key}">{_value(value)}</atem:parameter>\n' for key, value in arguments.items()]
        return f'<|start|>assistant to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n{"".join(pairs)}</atem:invoke>\n</atem:function_calls><|eom|>'

    return _each(invoke)(calls)


def _beam(calls):
    def call(name, arguments):
        pairs = [f'<rfl:parameter name="{key}">\n{_value(value)}\n</rfl:parameter>' for key, value in sorted(arguments.items())]
        return f" to={name}<|channel|>analysis <|constrain|>xml<|message|>{''.join(pairs)}"

    return _each(call, "<|end|><|start|>assistant")(calls) + "<|call|>"


def _step3(calls):
    def call(name, arguments):
        pairs = [f'<steptml:parameter name="{key}">{_value(value)}</steptml:parameter>' for key, value in arguments.items()]
        return f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">{"".join(pairs)}</steptml:invoke><｜tool_call_end｜>'

    return f"<｜tool_calls_begin｜>\n{_each(call, chr(10))(calls)}\n<｜tool_calls_end｜>"


_hermes = _each(lambda name, arguments: f"<tool_call>{_call(name, arguments)}</tool_call>")
_qwen = _each(lambda name, arguments: f"<tool_call>\n{_call(name, arguments)}\n</tool_call>", "\n")
_glm = _each(_keyed, "\n")

# The text that a model writes for two calls, by the name of the parser, and another format of the same parser in brackets.
FORMATS = {
    "apertus2509": lambda calls: f"<|tools_prefix|>{_json([{name: arguments} for name, arguments in calls])}<|tools_suffix|>",
    "beam": _beam,
    "cohere_command4": lambda calls: "<|START_ACTION|>[\n"
    + ",\n".join(_json({"tool_call_id": str(number), "tool_name": name, "parameters": arguments}) for number, (name, arguments) in enumerate(calls))
    + "\n]<|END_ACTION|>",
    "deepseekv3": lambda calls: f"<｜tool▁calls▁begin｜>{_each(_deepseek_v3, chr(10))(calls)}<｜tool▁calls▁end｜>",
    "deepseekv31": lambda calls: "<｜tool▁calls▁begin｜>"
    + "".join(f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_json(arguments)}<｜tool▁call▁end｜>" for name, arguments in calls)
    + "<｜tool▁calls▁end｜>",
    "deepseekv32": _dsml(str, "function_calls"),
    "deepseekv32 (json)": lambda calls: "<｜DSML｜function_calls>\n"
    + "".join(f'<｜DSML｜invoke name="{name}">\n{_json(arguments)}\n</｜DSML｜invoke>\n' for name, arguments in calls)
    + "</｜DSML｜function_calls>",
    "deepseekv4": _dsml(str, "tool_calls"),
    "deepseekv41": _dsml(" {}".format, " calls"),
    "dots": lambda calls: f"<dots_function_call>\n{_each(_invoke)(calls)}</dots_function_call>",
    "gemma4": _each(_gemma4),
    "gigachat3": lambda calls: f"<|function_call|>{_call(*calls[0])}",
    "gigachat35": _gigachat35,
    "glm": _glm,
    "glm45": _glm,
    "glm47": _each(lambda name, arguments: _keyed(name, arguments, "<tool_call>{}", "<arg_key>{}</arg_key><arg_value>{}</arg_value>")),
    "gpt-oss": _each(
        lambda name, arguments: f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_json(arguments)}<|call|>"
    ),
    "hermes": _hermes,
    "hunyuan": lambda calls: "<tool_calls>\n" + _each(lambda name, arguments: _keyed(name, arguments, "<tool_call>{}<tool_sep>\n"), "\n")(calls) + "\n</tool_calls>",
    "inkling": _each(
        lambda name, arguments: f"<|message_model|>{name}<|content_invoke_tool_json|>{_call(name, arguments, 'args')}<|end_message|>"
    ),
    "interns1": _each(lambda name, arguments: f"<|action_start|> <|plugin|>\n{_call(name, arguments, 'parameters')}<|action_end|>"),
    "iquest_q1": _each(
        lambda name, arguments: _keyed(name, arguments, "<iquest_tool_call>{}\n", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "</iquest_tool_call>"), "\n"
    ),
    "k2_horizon": lambda calls: "<ifm|tool_calls>\n"
    + "".join(f"<ifm|tool_call>\n{_call(name, arguments)}\n</ifm|tool_call>\n" for name, arguments in calls)
    + "</ifm|tool_calls>",
    "k2_horizon (xml)": lambda calls: _each(_keyed)(calls).replace("</", "</ifm|").replace("<tool", "<ifm|tool").replace("<arg", "<ifm|arg"),
    "kimi_k2": _kimi_k2,
    "kimi_k3": _kimi_k3,
    "lfm2": lambda calls: f"<|tool_call_start|>[{_python(calls)}]<|tool_call_end|>",
    "lfm2 (json)": lambda calls: f"<|tool_call_start|>[{', '.join(_call(*call) for call in calls)}]<|tool_call_end|>",
    "ling3": _glm,
    "llama3": lambda calls: "<|python_tag|>" + ";".join(_call(name, arguments, "parameters") for name, arguments in calls),
    "mimo": _each(lambda name, arguments: _keyed(name, arguments, "<tool_call>\n<function={}>\n", "<parameter={}>{}</parameter>\n", "</function>\n</tool_call>"), "\n"),
    "minicpm5": _each(
        lambda name, arguments: f'<function name="{name}">' + "".join(f'<param name="{key}">{_value(value)}</param>' for key, value in arguments.items()) + "</function>"
    ),
    "minimax-m2": lambda calls: f"<minimax:tool_call>\n{_each(_invoke)(calls)}</minimax:tool_call>",
    "minimax-m3": _minimax_m3,
    "mistral": _each(lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}"),
    "mistral (list)": lambda calls: f"[TOOL_CALLS] [{', '.join(_call(*call) for call in calls)}]",
    "muse": _muse,
    "nanbeige": _each(_coder, "\n"),
    "poolside_v1": _glm,
    "pythonic": lambda calls: f"[{_python(calls)}]",
    "qwen": _qwen,
    "qwen25": _qwen,
    "qwen3_coder": _each(_coder, "\n"),
    "spark25": _each(lambda name, arguments: _keyed(name, arguments, pair="<arg_key>{}</arg_key><arg_value>{}</arg_value>\n"), "\n"),
    "step3": _step3,
    "step3p5": _each(_coder, "\n"),
    "trinity": _qwen,
}
# A format of one call: its model writes no second.
SINGLE = ("gigachat3",)
# A format in which nothing stands before the first call.
FROM_THE_START = ("muse",)
# The parser loses the second call of this format also at one token a chunk.
WRONG_IN_SGLANG = ("mistral (list)", "interns1")
# The markers that are tokens of the models.
MARKERS = re.compile(
    r"""<｜(?!DSML|GCML)[^｜]*｜>|｜(?:DSML|GCML)｜|<\|"\|>|<\|[a-z_A-Z]+\|>|<\|tool_call>|<tool_call\|>|</?tool_calls?>|<tool_sep>|</?arg_(?:key|value)>"""
    r"""|</?ifm\|\w+>|</?minimax:tool_call>|\]<\]minimax\[>\[|</?iquest_tool_call>|</?dots_function_call>|\[TOOL_CALLS\]|\[ARGS\]"""
)
_TOKEN = re.compile(rf"{MARKERS.pattern}|\s?[^\W\d]{{1,8}}|\d|[^\S\n]?[^\s\w<\[\]｜]{{1,3}}\n?|\s+|.", re.DOTALL)


def tokens(text):
    """A text as a tokenizer could divide it: a marker is one token, a name several."""
    return _TOKEN.findall(text)


def parser_of(name):
    return name.split(" ")[0]


def longer(number):
    """CALLS with more words in the first, so that the calls of each number begin at another token."""
    (name, arguments), other = CALLS
    return [[name, {**arguments, "city": "New" + " York" * (1 + number)}], other]


def calls_of(name, calls):
    """The calls that the text of a format has."""
    return calls[:1] if name in SINGLE else calls


def cut(tokens, seed, most=40):
    """The tokens joined to chunks of 1 to `most`, cut at random."""
    rnd, chunks, at = random.Random(seed), [], 0
    while at < len(tokens):
        number = rnd.randint(1, most)
        chunks.append("".join(tokens[at : at + number]))
        at += number
    return chunks
