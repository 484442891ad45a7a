"""Tests what parsers get and clients receive for a chunk of several tokens, with small parsers that take one step for each chunk."""
import asyncio
import types

import pytest

from afterbay_sglang import tool_calls


class Part:
    """SGLang's ToolCallItem."""

    def __init__(self, tool_index, parameters="", name=None):
        self.tool_index, self.parameters, self.name = tool_index, parameters, name

    def __eq__(self, other):
        return vars(self) == vars(other)


class Parser:
    """Takes one step for each chunk: a name in brackets begins a call, a digit is an argument, everything else is text."""

    def __init__(self):
        self.seen, self.number, self.ended = [], -1, 0

    def parse_stream_chunk(self, text):
        self.seen.append(text)
        if text.startswith("<"):
            self.number += 1
            return "", [Part(self.number, name=text)]
        return ("", [Part(self.number, text)]) if text.isdigit() else (text, [])

    def parse_stream_end(self):
        self.ended += 1
        return "", []


def read(parser, text):
    return tool_calls.read_chunk(Parser.parse_stream_chunk, parser, text)


def test_a_chunk_is_parsed_in_pieces_and_its_parts_are_joined_for_the_client():
    parser = Parser()
    assert read(parser, "a b!<f>1\n2<g>7.<h>") == ("a b!\n.", [Part(0, "12", "<f>"), Part(1, "7", "<g>"), Part(2, name="<h>")])
    assert parser.seen == ["a b", "!", "<f>", "1", "\n", "2", "<g>", "7", ".", "<h>"]


def test_a_chunk_of_one_token_or_none_is_parsed_as_it_is():
    for text in ("word", "<f>", ""):
        parser, answer = Parser(), object()
        assert tool_calls.read_chunk(lambda _parser, got: (answer, got), parser, text) == (answer, text)


def test_a_part_of_an_earlier_chunk_is_not_changed_by_a_later_one():
    kept = []

    def original(_parser, _text):
        kept.append(Part(0, "1"))
        return "", [kept[-1]]

    assert tool_calls.read_chunk(original, None, "1.2")[1] == [Part(0, "111")]
    assert kept == [Part(0, "1")] * 3, "a parser may keep what it returned"


def test_an_array_of_calls_is_parsed_in_pieces():
    def original(parser, text, tools):
        assert tools == "tools"
        normal, calls = parser.parse_stream_chunk(text)
        return types.SimpleNamespace(normal_text=normal, calls=calls)

    result = tool_calls.read_array(original, Parser(), "a<f>12<g>", "tools")
    assert (result.normal_text, result.calls) == ("a", [Part(0, "12", "<f>"), Part(1, name="<g>")])
    empty = tool_calls.read_array(original, Parser(), "", "tools")
    assert (empty.normal_text, empty.calls) == ("", [])


class Reasoning:
    """Says for each chunk which text it got."""


@pytest.mark.parametrize(
    "arguments, keywords, in_pieces",
    [
        (("qwen3", True, None, types.SimpleNamespace(tools=["f"])), {}, True),
        (("qwen3", True, None, types.SimpleNamespace(tools=None)), {}, False),
        (("qwen3",), {"request": types.SimpleNamespace(tools=["f"])}, True),
        (("qwen3", True, None, types.SimpleNamespace(tools=["f"])), {"tool_call_parser_active": False}, False),
        (("qwen3",), {"tool_call_parser_active": True}, True),
        (("qwen3",), {}, False),
    ],
    ids=["tools", "no tools", "tools by name", "tool_choice none", "a parser without declared tools", "no request"],
)
def test_thinking_is_parsed_in_pieces_only_for_a_request_with_tools(arguments, keywords, in_pieces):
    parser, seen = Reasoning(), []

    def original(_parser, text):
        seen.append(text)
        return (text, None) if len(seen) % 2 else (None, text)

    assert tool_calls.remember_tools(None, parser, *arguments, **keywords) is None
    assert tool_calls.read_reasoning(original, parser, "a.b") == (("ab", ".") if in_pieces else ("a.b", None))
    assert seen == (["a", ".", "b"] if in_pieces else ["a.b"])


async def process(serving, index, delta, parser_dict, content, flush=None):
    """SGLang's _process_tool_call_stream: the text of a chunk, then its calls."""
    parser = parser_dict.setdefault(index, serving.new_parser())
    text, calls = parser.parse_stream_chunk(delta)
    if flush:
        parser.parse_stream_end()
    for event in [text] * bool(text) + [(call.tool_index, call.parameters) for call in calls]:
        yield event, content


def send(parsers, text, **keywords):
    async def collect():
        stream = tool_calls.send_in_order(process, types.SimpleNamespace(new_parser=Parser), 0, text, parsers, "content", **keywords)
        return [event async for event, content in stream if content == "content"]

    return asyncio.run(collect())


def test_a_text_behind_a_call_is_sent_behind_it():
    parsers = {}
    assert send(parsers, "a<f>1", flush=False) == ["a", (0, "1")]
    assert send(parsers, "23.<g>4!?", flush=False) == [(0, "23"), ".", (1, "4"), "!?"]
    assert parsers[0].ended == 0 and parsers[0].seen[-2:] == ["!", "?"]


def test_a_long_chunk_lets_other_requests_have_their_turn():
    async def main():
        turns, parsers = [], {0: Parser()}
        other = asyncio.create_task(asyncio.sleep(0))
        other.add_done_callback(lambda _: turns.append(len(parser.seen)))
        parser = parsers[0]
        stream = tool_calls.send_in_order(process, types.SimpleNamespace(new_parser=Parser), 0, "." * 10 * tool_calls.PIECES_AT_ONCE, parsers, "content")
        return [event async for event, _ in stream], turns

    events, [turn] = asyncio.run(main())
    assert events == ["." * 10 * tool_calls.PIECES_AT_ONCE]
    assert 0 < turn < 10 * tool_calls.PIECES_AT_ONCE


@pytest.mark.parametrize("text", ["", "1", "1.2.3", "<f>1.<g>"])
def test_only_the_last_part_of_the_last_chunk_ends_the_parser(text):
    parsers = {}
    send(parsers, "<f>", flush=False)
    send(parsers, text, flush=True)
    assert isinstance(parsers[0], Parser) and parsers[0].ended == 1


def test_a_version_that_never_ends_a_parser_is_called_without_flush():
    parsers = {}
    assert send(parsers, "<f>1.2") == [(0, ""), (0, "1"), ".", (0, "2")]


def test_a_parser_of_arrays_gets_the_whole_chunk():
    parsers = {0: types.SimpleNamespace(parse_streaming_increment=None)}
    seen = []

    async def original(_serving, _index, delta, _parsers, **_keywords):
        seen.append(delta)
        yield "event"

    async def collect():
        return [event async for event in tool_calls.send_in_order(original, None, 0, "a.b", parsers, flush=True)]

    assert (asyncio.run(collect()), seen) == (["event"], ["a.b"])
