"""Drives the engines' own parsers of tool calls, to compare what a client gets with what grammar-check judges.

    differential.py generate [SEED COUNT]      texts with calls and mistakes: one JSON object a line, {"format", "text", "reasoning"}
    differential.py bfcl DIRECTORY COUNT       the same with the calls of the Berkeley leaderboard: COUNT entries of each file, whose
                                               ground truth is added as what is expected. DIRECTORY is bfcl_eval/data of its repository
    PY differential.py sglang|vllm < TEXTS     adds what the engine delivers. PY is the Python of an installed engine; for SGLang
                                               PYTHONPATH holds its source

Each text is given to the parser whole and token by token (one token a chunk, as the connector hands them out), to each parser that
the engine has for the format. The key of the engine then lists the different outcomes; an outcome lists the calls as [name, arguments].
The test `the_judgement_is_that_of_the_engines` reads the lines: of cases.jsonl, or of the file in AFTERBAY_ENGINE_CASES.
"""
import json, logging, os, random, re, sys, warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
# SGLang drops calls of unknown tools by default. They are kept here, since other settings and parsers deliver them.
os.environ.update(SGLANG_FORWARD_UNKNOWN_TOOLS="1", VLLM_LOGGING_LEVEL="CRITICAL", HF_HUB_OFFLINE="1")
HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = json.load(open(os.path.join(HERE, "tools.json")))

# The engines' parsers of each format of grammar-check.
PARSERS = {
    "sglang": {
        "hermes": ["hermes", "qwen25", "qwen3_coder"], "llama": ["llama3"], "mistral": ["mistral"], "deepseek": ["deepseekv3", "deepseekv31"],
        "harmony": ["gpt-oss"], "pythonic": ["pythonic"], "deepseekv32": ["deepseekv32"], "glm": ["glm45", "glm47"], "kimi_k2": ["kimi_k2"],
        "minimax-m2": ["minimax-m2"], "step3": ["step3"], "hunyuan": ["hunyuan"],
    },
    "vllm": {
        "hermes": ["hermes", "qwen3_coder"], "llama": ["llama3_json"], "mistral": ["mistral"], "deepseek": ["deepseek_v3", "deepseek_v31"],
        "pythonic": ["pythonic", "llama4_pythonic"], "deepseekv32": ["deepseek_v32"], "glm": ["glm45"], "kimi_k2": ["kimi_k2"],
        "minimax-m2": ["minimax_m2"], "step3": ["step3"], "hunyuan": ["hunyuan_a13b"], "granite": ["granite"],
    },
}
REASONING = {
    "sglang": {"deepseek-r1": "deepseek-r1", "qwen3": "qwen3", "glm45": "glm45", "kimi_k2": "kimi_k2"},
    "vllm": {"deepseek-r1": "deepseek_r1", "qwen3": "qwen3", "glm45": "glm45", "kimi_k2": "kimi_k2"},
}
MARKER = re.compile(r"(<｜[^｜]*｜>|</?｜DSML｜function_calls>|｜DSML｜|<\|[^|]*\|>|</?tool_calls?>|\[[A-Z_]{3,12}\]|</?arg_key>|</?arg_value>|</?minimax:tool_call>|</?think>)")


def pieces(text):
    """Pieces like tokens: a marker is one, a word with its space is one."""
    parts = []
    for part in MARKER.split(text):
        parts += [part] if MARKER.fullmatch(part) else re.findall(r"\s?[A-Za-z0-9_]+|\s|[^\sA-Za-z0-9_]{1,2}", part)
    return [part for part in parts if part]


class Outcomes(list):
    def take(self, calls):
        calls = [[name or "", arguments or ""] for name, arguments in calls]
        if calls not in self:
            self.append(calls)


def parsers(engine, case):
    """The parsers of the case's format. V3 and V3.1 of DeepSeek have the same markers, and a parser each."""
    names = PARSERS[engine].get(case["format"], [])
    if case["format"] == "deepseek":
        is_v3 = "```" in case["text"] or "function<｜tool▁sep｜>" in case["text"]
        names = [name for name in names if name.endswith("v3") == is_v3]
    return names


def sglang(case, outcomes):
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    tools, text, reasoning = [Tool(**tool) for tool in case.get("tools", TOOLS)], case["text"], REASONING["sglang"].get(case.get("reasoning"))
    for name in parsers("sglang", case):
        parser, rest = FunctionCallParser(tools=tools, tool_call_parser=name), text
        try:
            if reasoning:
                rest = ReasoningParser(model_type=reasoning, stream_reasoning=False).parse_non_stream(text)[1] or ""
            found = parser.parse_non_stream(rest)[1] if parser.has_tool_call(rest) else []
        except Exception:
            found = []
        outcomes.take((call.name, call.parameters) for call in found)
        parser, calls = FunctionCallParser(tools=tools, tool_call_parser=name), {}
        reader = ReasoningParser(model_type=reasoning, stream_reasoning=True) if reasoning else None

        def take(found):
            for one in found:
                call = calls.setdefault(one.tool_index, ["", ""])
                call[0] += one.name or ""
                call[1] += one.parameters or ""

        for piece in pieces(text):
            if reader:
                piece = reader.parse_stream_chunk(piece)[1] or ""
            try:
                take(parser.parse_stream_chunk(piece)[1] if piece else [])
            except Exception:
                pass
        try:
            if reader and (left := reader.parse_stream_end()[1]):
                take(parser.parse_stream_chunk(left)[1])
            take(parser.parse_stream_end()[1])
        except Exception:
            pass
        # The server sends the arguments that the parser has read and not streamed, at the end.
        read, sent = parser.detector.prev_tool_call_arr, parser.detector.streamed_args_for_tool
        if read and len(read) <= len(sent) and len(read) - 1 in calls:
            whole, call = read[-1].get("arguments", {}), calls[len(read) - 1]
            whole = whole if isinstance(whole, str) else json.dumps(whole, ensure_ascii=False)
            if whole.startswith(call[1]):
                call[1] = whole
        outcomes.take(calls.values())


TOKENIZERS = {}


def tokenizer(without=()):
    if without not in TOKENIZERS:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        model = Tokenizer(models.BPE(vocab=letters, merges=[]))
        model.pre_tokenizer, model.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        markers = """<tool_call> </tool_call> <|python_tag|> [TOOL_CALLS] [ARGS] [CALL_ID] <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜>
            <｜tool▁call▁end｜> <｜tool▁sep｜> ｜DSML｜ <arg_key> </arg_key> <arg_value> </arg_value> <|tool_calls_section_begin|> <|tool_calls_section_end|>
            <|tool_call_begin|> <|tool_call_end|> <|tool_call_argument_begin|> <minimax:tool_call> </minimax:tool_call> <｜tool_calls_begin｜> <｜tool_calls_end｜>
            <｜tool_call_begin｜> <｜tool_call_end｜> <｜tool_sep｜> <think> </think> <|tool_call|> <|python_start|> <|python_end|>""".split()
        # A marker is one token, as in the models' vocabularies.
        model.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in markers if marker not in without])
        TOKENIZERS[without] = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<|im_end|>")
    return TOKENIZERS[without]


def vllm(case, outcomes):
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager

    text = case["text"]
    # The older models of Mistral, which write a list, have no token [ARGS]: vLLM's parser tells them by it.
    is_list = case["format"] == "mistral" and re.search(r"\[TOOL_CALLS\]\s*[\[{]", text)
    words = tokenizer(("[ARGS]",) if is_list else ())
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=case.get("tools", TOOLS), tool_choice="auto")
    for name in parsers("vllm", case):
        parser = ParserManager.get_parser(tool_parser_name=name, reasoning_parser_name=REASONING["vllm"].get(case.get("reasoning")), enable_auto_tools=True)
        try:
            found = parser(words, request.tools).parse(text, request, enable_auto_tools=True)[2] or []
        except Exception:
            found = []
        outcomes.take((call.name, call.arguments) for call in found)
        stream, calls, chunks = parser(words, request.tools), {}, pieces(text)
        for at, piece in enumerate(chunks):
            ids = words.encode(piece, add_special_tokens=False)
            try:
                delta = stream.parse_delta(piece, ids, request, [], finished=at + 1 == len(chunks))
            except Exception:
                continue
            for one in (delta.tool_calls or []) if delta else []:
                call = calls.setdefault(one.index, ["", ""])
                if one.function:
                    call[0] += one.function.name or ""
                    call[1] += one.function.arguments or ""
        outcomes.take(calls.values())


def written(form, name, arguments):
    """A call as the models of a format write it, without what stands around all calls."""
    whole = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    values = {key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in arguments.items()}
    inner = json.dumps(arguments, ensure_ascii=False)
    each = lambda one: "".join(one(key, value) for key, value in values.items())
    python = lambda value: repr(value)
    return {
        "hermes": lambda: f"<tool_call>\n{whole}\n</tool_call>",
        "coder": lambda: f"<tool_call>\n<function={name}>\n" + each(lambda k, v: f"<parameter={k}>\n{v}\n</parameter>\n") + "</function>\n</tool_call>",
        "llama": lambda: whole.replace('"arguments"', '"parameters"', 1),
        "mistral": lambda: f"[TOOL_CALLS]{name}[ARGS]{inner}",
        "list": lambda: whole,
        "deepseek": lambda: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{inner}\n```<｜tool▁call▁end｜>",
        "deepseekv31": lambda: f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{inner}<｜tool▁call▁end｜>",
        "harmony": lambda: f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{inner}<|call|>",
        "pythonic": lambda: f"{name}(" + ", ".join(f"{k}={python(v)}" for k, v in arguments.items()) + ")",
        "deepseekv32": lambda: f'<｜DSML｜invoke name="{name}">\n' + "".join(
            f'<｜DSML｜parameter name="{k}" string="{str(isinstance(arguments[k], str)).lower()}">{v}</｜DSML｜parameter>\n' for k, v in values.items()
        ) + "</｜DSML｜invoke>\n",
        "glm": lambda: f"<tool_call>{name}\n" + each(lambda k, v: f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n") + "</tool_call>",
        "kimi_k2": lambda: f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{inner}<|tool_call_end|>",
        "minimax-m2": lambda: f'<invoke name="{name}">\n' + each(lambda k, v: f'<parameter name="{k}">{v}</parameter>\n') + "</invoke>\n",
        "step3": lambda: f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">'
        + each(lambda k, v: f'<steptml:parameter name="{k}">{v}</steptml:parameter>') + "</steptml:invoke><｜tool_call_end｜>",
        "hunyuan": lambda: f"<tool_call>{name}<tool_sep>" + each(lambda k, v: f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>") + "</tool_call>",
        "granite": lambda: whole,
    }[form]()


# The format of each form, and what stands before, between and behind its calls.
AROUND = {
    "hermes": ("hermes", "", "\n", ""), "coder": ("hermes", "", "\n", ""), "llama": ("llama", "<|python_tag|>", ";", ""), "mistral": ("mistral", "", "", ""),
    "list": ("mistral", "[TOOL_CALLS] [", ", ", "]"), "deepseek": ("deepseek", "<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
    "deepseekv31": ("deepseek", "<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"), "harmony": ("harmony", "", "", ""),
    "pythonic": ("pythonic", "[", ", ", "]"), "deepseekv32": ("deepseekv32", "<｜DSML｜function_calls>\n", "", "</｜DSML｜function_calls>"),
    "glm": ("glm", "", "\n", ""), "kimi_k2": ("kimi_k2", "<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
    "minimax-m2": ("minimax-m2", "<minimax:tool_call>\n", "", "</minimax:tool_call>"), "step3": ("step3", "<｜tool_calls_begin｜>", "\n", "<｜tool_calls_end｜>"),
    "hunyuan": ("hunyuan", "<tool_calls>", "\n", "</tool_calls>"), "granite": ("granite", "<|tool_call|>[", ", ", "]"),
}
CALLS = [
    ("get_weather", {"city": "Paris", "days": 3}), ("get_weather", {"city": "a \"b\" <c> d", "unit": "celsius"}), ("get_time", {}),
    ("search", {"query": "x", "tags": ["a", "b"], "limit": 3, "score": 0.5, "exact": True, "filter": {"a": 1}}), ("search", {"query": "3"}),
]
MISTAKES = [
    ("get_weather", {"days": 3}), ("get_weather", {"city": "Paris", "days": 99}), ("get_weather", {"city": "Paris", "unit": "kelvin"}),
    ("get_weather", {"city": "Paris", "town": "x"}), ("search", {"query": "x", "limit": "many"}), ("no_such_tool", {"a": 1}), ("search", {"query": "x", "tags": "a"}),
]
PROSE = ["I will ask.\n", "", "Yes: ", "<b>Now</b>\n\n"]


def text_of(form, calls):
    format, before, between, behind = AROUND[form]
    return {"format": format, "text": before + between.join(written(form, *call) for call in calls) + behind}


def generate(seed=1, count=200):
    """Valid calls and mistakes in each form, the cuts of one call, and random changes to these texts."""
    pick, cases = random.Random(seed), []
    for form in AROUND:
        base = [text_of(form, [call]) for call in CALLS + MISTAKES]
        base += [text_of(form, calls) for calls in ([CALLS[0], CALLS[2]], [CALLS[0], MISTAKES[1]], [MISTAKES[0], CALLS[0]], [CALLS[3], CALLS[1]])]
        cases += base
        bare = form == "pythonic" or form == "llama" and pick.random() < 0.5
        for prose in PROSE:
            cases.append({**base[0], "text": ("" if bare else prose) + base[0]["text"] + pick.choice(["", "<|im_end|>", "\nDone."])})
        whole = base[0]["text"]
        cases += [{**base[0], "text": whole[:cut]} for cut in range(1, len(whole), max(1, len(whole) // 12))]
        for _ in range(count // 10):
            case = dict(pick.choice(base))
            parts = pieces(case["text"])
            for _ in range(pick.randint(1, 2)):
                at = pick.randrange(len(parts))
                how = pick.randrange(4)
                if how == 0:
                    del parts[at]
                elif how == 1:
                    parts.insert(at, parts[at])
                elif how == 2:
                    parts.insert(at, pick.choice([" ", "\n", "x", "\"", "{", "}", "'", "<", "[", pick.choice(parts)]))
                else:
                    other = pick.randrange(len(parts))
                    parts[at], parts[other] = parts[other], parts[at]
                parts = parts or [" "]
            cases.append({**case, "text": "".join(parts)})
    seen = set()
    for case in cases:
        line = json.dumps(case, ensure_ascii=False)
        if line not in seen and case["text"]:
            seen.add(line)
            print(line)


def schema(node):
    """A type of BFCL as JSON schema."""
    if not isinstance(node, dict):
        return node
    types = {"dict": "object", "float": "number", "double": "number", "long": "integer", "tuple": "array", "ArrayList": "array", "Array": "array", "HashMap": "object"}
    found = {key: node[key] for key in ("required", "enum", "description") if key in node}
    if "items" in node:
        found["items"] = schema(node["items"])
    if "properties" in node:
        found["properties"] = {key: schema(value) for key, value in node["properties"].items()}
    kind = types.get(node.get("type"), node.get("type"))
    return {**found, "type": kind} if kind in ("object", "array", "string", "integer", "number", "boolean") else found


def bfcl(directory, count):
    """The ground truth of BFCL in every form. Left out are answers that are no value of their own schema."""
    import glob
    from jsonschema import Draft202012Validator

    def value(alternatives):
        """The first alternative; within an object, each value is a list of alternatives."""
        first = alternatives[0] if isinstance(alternatives, list) and alternatives else alternatives
        return values(first) if isinstance(first, dict) else first

    def values(of):
        """Those that may not be left out."""
        return {key: value(inner) for key, inner in of.items() if not (isinstance(inner, list) and "" in inner)}

    for path in sorted(glob.glob(os.path.join(directory, "possible_answer", "BFCL_v4_*.json"))):
        entries = [[json.loads(line) for line in open(file)] for file in (os.path.join(directory, os.path.basename(path)), path)]
        answers = {answer["id"]: answer["ground_truth"] for answer in entries[1]}
        left = count
        for entry in entries[0]:
            truth = answers.get(entry["id"])
            if not isinstance(truth, list) or not left:
                continue
            functions = [{**one, "name": one["name"].replace(".", "_"), "parameters": schema(one["parameters"])} for one in entry["function"]]
            tools = [{"type": "function", "function": one} for one in functions]
            calls = [(name.replace(".", "_"), values(one)) for call in truth for name, one in call.items()]
            known = {one["name"]: Draft202012Validator(one["parameters"]) for one in functions}
            if all(name in known and known[name].is_valid(arguments) for name, arguments in calls):
                left -= 1
                for form in AROUND:
                    expected = [[name, json.dumps(arguments)] for name, arguments in calls]
                    print(json.dumps({**text_of(form, calls), "tools": tools, "expected": [expected]}, ensure_ascii=False))


if __name__ == "__main__":
    if sys.argv[1] == "generate":
        generate(*map(int, sys.argv[2:]))
    elif sys.argv[1] == "bfcl":
        bfcl(sys.argv[2], int(sys.argv[3]))
    else:
        read = {"sglang": sglang, "vllm": vllm}[sys.argv[1]]
        for line in sys.stdin:
            case, outcomes = json.loads(line), Outcomes()
            if case["format"] in PARSERS[sys.argv[1]]:
                read(case, outcomes)
                case[sys.argv[1]] = outcomes
            print(json.dumps(case, ensure_ascii=False), flush=True)
