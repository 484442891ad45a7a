"""Tests the clients of SGLang's own parsers and serving_chat, in one process of its own Python. Skipped if there is none.

`wrong` names the formats whose client gets other calls than the model wrote, before and after the connector is loaded.
"""
import json
import pathlib

import pytest

import tool_call_texts as texts

HERE = pathlib.Path(__file__).resolve().parent
CUTS = 2

WRONG = """
import asyncio, json, logging, os
logging.disable(logging.CRITICAL)
import chat_client as client, tool_call_texts as texts
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from sglang.srt.function_call.function_call_parser import FunctionCallParser
client.publish()

def formats(sets):
    for name, write in texts.FORMATS.items():
        for calls in sets:
            want = texts.calls_of(name, calls)
            yield name, calls, want, write(want)

def chunkings(text):
    tokens = texts.tokens(text)
    yield "a token a chunk", [tokens + [""]]
    yield "joined", [texts.cut(tokens, seed) for seed in range(CUTS)]
    yield "all in one", [[text], [text, ""]]

def wrong(sets):
    found = {}
    for name, calls, want, text in formats(sets):
        parser = texts.parser_of(name)
        for how, cuts in chunkings(text):
            for chunks in cuts:
                if client.read(client.chat_events(parser, chunks, calls))[2] != want: found.setdefault(how, set()).add(name)
                if how == "joined" and calls is texts.CALLS and client.read_messages(client.messages_events(parser, chunks, calls))[1] != want: found.setdefault("joined, messages", set()).add(name)
    return {how: sorted(names) for how, names in found.items()}

def array_wrong():
    text = json.dumps([{"name": name, "parameters": arguments} for name, arguments in texts.CALLS])
    want, found = [[name, arguments] for name, arguments in texts.CALLS], []
    for how, cuts in chunkings(text):
        for chunks in cuts:
            events = client.chat_events("pythonic", chunks, texts.CALLS, tool_choice="required")
            if client.read(events)[2] != want: found.append(how)
    return sorted(set(found))

def thinking_differs():
    found = []
    for reasoning, name, text in (
        ("qwen3", "qwen25", "<think>So I write {} here.</think>Done."),
        ("qwen3", "qwen25", "<think>So.</think>{}"),
        ("kimi_k2", "kimi_k2", "<think>So I write {} here.</think>Done."),
        ("deepseek-v3", "deepseekv31", "<think>So.</think>{}"),
        ("glm45", "glm45", "<think>So {}</think>"),
    ):
        text = text.replace("{}", texts.FORMATS[name](texts.CALLS))
        tokens = texts.tokens(text)
        read = lambda chunks: client.read(client.chat_events(name, chunks, texts.CALLS, reasoning))
        one = read(tokens + [""])
        assert one[2] == texts.CALLS, (reasoning, one)
        for chunks in [[text], *(texts.cut(tokens, seed) for seed in range(CUTS))]:
            if read(chunks) != one: found.append(reasoning + " " + text[:12])
    return sorted(set(found))
"""


@pytest.fixture(scope="module")
def found(real_sglang, tmp_path_factory):
    directory = tmp_path_factory.mktemp("parsers")
    (directory / "afterbay_connector").symlink_to(HERE.parents[1] / "afterbay_connector")
    (directory / "afterbay_sglang").symlink_to(HERE.parents[1] / "afterbay_sglang")
    code = (
        WRONG.replace("CUTS", str(CUTS))
        + """
seen = lambda *sets: {"wrong": wrong(sets), "array": array_wrong(), "thinking": thinking_differs()}
before = seen(texts.CALLS)
import afterbay_sglang
from sglang.srt.plugins.hook_registry import HookRegistry
afterbay_sglang.register(); HookRegistry.apply_hooks()
print(json.dumps({"before": before, "after": seen(texts.CALLS, texts.RICH_CALLS), "formats": sorted(FunctionCallParser.ToolCallParserEnum)}))
"""
    )
    return real_sglang.answer(code, path=[directory, HERE], timeout=600, AFTERBAY_CREDIT=directory / "credit")


def test_each_registered_parser_has_a_text(found):
    # Its format is that of a model's own template. `beam` is such a parser with a template.
    assert {texts.parser_of(name) for name in texts.FORMATS} == set(found["formats"]) - {"response_template"}


def test_every_parser_gives_the_calls_of_one_token_a_chunk_for_any_chunks(found):
    assert set(found["before"]["wrong"]["joined"]) >= {"hermes", "deepseekv3", "deepseekv31", "llama3", "gpt-oss", "glm47"}, "what this is for"
    wrong_in_sglang = sorted(texts.WRONG_IN_SGLANG)
    wrong = found["after"]["wrong"]
    assert {how: sorted(set(names) - set(wrong_in_sglang)) for how, names in wrong.items()} == dict.fromkeys(wrong, [])
    assert wrong["a token a chunk"] == found["before"]["wrong"]["a token a chunk"] == wrong_in_sglang
    assert "interns1" not in wrong["all in one"]


def test_arguments_in_front_of_a_text_reach_a_client_of_the_anthropic_api(found):
    assert "qwen3_coder" in set(found["before"]["wrong"]["joined, messages"]) - set(found["before"]["wrong"]["joined"])
    assert set(found["after"]["wrong"]["joined, messages"]) <= set(texts.WRONG_IN_SGLANG)


def test_a_required_call_in_a_json_array_is_read_from_any_chunks(found):
    # Before the connector, SGLang 0.5.23 reads it too. 0.5.15 does not.
    assert not found["after"]["array"]


def test_calls_in_and_behind_thinking_are_those_of_one_token_a_chunk(found):
    assert found["before"]["thinking"] and not found["after"]["thinking"]
