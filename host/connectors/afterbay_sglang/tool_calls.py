"""Gives SGLang's parsers each chunk of a request with tools in pieces of about a token.

SGLang's streaming parsers take one step for each chunk, and lose arguments if a chunk has several tokens. Chunks have several
tokens after Afterbay, a speculative decoder, `--stream-interval` or SGLang itself has joined them. This module decides what a
client receives for a chunk: its texts as one, and the parts of a call as one. It must not know any format of calls.

| hooked                                        | called for                                                                |
| FunctionCallParser.parse_stream_chunk         | a format of a model, also of a plugin                                     |
| JsonArrayParser.parse_streaming_increment     | `tool_choice` "required" or a name, for a format without its own grammar  |
| ReasoningParser.parse_stream_chunk            | thinking before calls, or calls in it                                     |
| OpenAIServingChat._process_tool_call_stream   | the order of texts and calls in a chunk                                   |
"""
from __future__ import annotations

import asyncio
import copy
import types
from typing import Any, AsyncIterator, Callable, Iterable, List, Optional, Tuple

from afterbay_connector import front_end
from afterbay_connector.pieces import pieces

_PARSER = "sglang.srt.function_call.function_call_parser.FunctionCallParser"
_ARRAY_PARSER = "sglang.srt.function_call.json_array_parser.JsonArrayParser"
_REASONING_PARSER = "sglang.srt.parser.reasoning_parser.ReasoningParser"
_CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
# Front ends that parse tool calls in a process of their own, by the package that starts the engine for them.
_FRONT_ENDS = {"dynamo": "Dynamo's front end", "smg_grpc_servicer": "SMG"}
# Other requests have their turn after so many pieces: some parsers need a millisecond for each.
PIECES_AT_ONCE = 32
# The attribute of a reasoning parser whose request has tools.
_HAS_TOOLS = "_afterbay_has_tools"

# A text, and the parts of calls that follow it: what SGLang's parsers return.
Parsed = Tuple[str, List[Any]]


def find_front_end() -> None:
    front_end.find(_FRONT_ENDS)


def hooks() -> List[Tuple[str, str, Any]]:
    return [
        (f"{_PARSER}.parse_stream_chunk", "AROUND", read_chunk),
        (f"{_ARRAY_PARSER}.parse_streaming_increment", "AROUND", read_array),
        (f"{_REASONING_PARSER}.__init__", "AFTER", remember_tools),
        (f"{_REASONING_PARSER}.parse_stream_chunk", "AROUND", read_reasoning),
        (f"{_CHAT}._process_tool_call_stream", "AROUND", send_in_order),
    ]


def read_chunk(original: Callable[..., Parsed], parser: Any, text: str) -> Parsed:
    split = pieces(text)
    if len(split) < 2:
        return original(parser, text)
    return _one(original(parser, piece) for piece in split)


def read_array(original: Callable[..., Any], parser: Any, text: str, tools: Any) -> Any:
    split = pieces(text)
    if len(split) < 2:
        return original(parser, text, tools)
    results = [original(parser, piece, tools) for piece in split]
    normal_text, calls = _one((result.normal_text, result.calls) for result in results)
    return type(results[0])(normal_text=normal_text, calls=calls)


def remember_tools(_result: Any, parser: Any, *args: Any, **kwargs: Any) -> None:
    """Mark a reasoning parser whose request has tools. SGLang says it to the parser from 0.5.18 on; the request has always known."""
    request = kwargs.get("request", args[3] if len(args) > 3 else None)
    setattr(parser, _HAS_TOOLS, kwargs.get("tool_call_parser_active", bool(getattr(request, "tools", None))))


def read_reasoning(original: Callable[..., Tuple[Any, Any]], parser: Any, text: str) -> Tuple[Any, Any]:
    split = pieces(text) if getattr(parser, _HAS_TOOLS, False) else []
    if len(split) < 2:
        return original(parser, text)
    results = [original(parser, piece) for piece in split]
    return "".join(reasoning or "" for reasoning, _ in results), "".join(normal or "" for _, normal in results)


async def send_in_order(original: Callable[..., AsyncIterator[str]], serving: Any, index: int, text: str, parsers: Any, *args: Any, **kwargs: Any) -> AsyncIterator[str]:
    """Send a chunk with a text behind a call as several events. SGLang sends the text of a chunk first, which in the Anthropic API
    ends the call: its last arguments would be dropped."""
    early = {**kwargs, "flush": False} if "flush" in kwargs else kwargs
    split = pieces(text)
    if len(split) > 1 and index not in parsers:
        # The original makes the parser.
        async for event in original(serving, index, split.pop(0), parsers, *args, **early):
            yield event
    parser = parsers.get(index)
    if len(split) < 2 or not hasattr(parser, "parse_stream_chunk"):
        async for event in original(serving, index, "".join(split), parsers, *args, **kwargs):
            yield event
        return
    results = []
    for number, piece in enumerate(split, 1):
        results.append(parser.parse_stream_chunk(piece))
        if number % PIECES_AT_ONCE == 0:
            await asyncio.sleep(0)
    parts = _in_order(results)
    try:
        for number, part in enumerate(parts, 1):
            parsers[index] = types.SimpleNamespace(parse_stream_chunk=lambda _text, part=part: part, parse_stream_end=getattr(parser, "parse_stream_end", None))
            async for event in original(serving, index, "", parsers, *args, **(kwargs if number == len(parts) else early)):
                yield event
    finally:
        parsers[index] = parser


def _one(results: Iterable[Parsed]) -> Parsed:
    """Join what a parser returned for the pieces of a chunk, as if for the chunk."""
    texts, calls = [], []
    for text, parts in results:
        texts.append(text or "")
        calls += parts
    return "".join(texts), _join_calls(calls)


def _in_order(results: Iterable[Parsed]) -> List[Parsed]:
    """Join as much of it as keeps each text in front of the calls that follow it."""
    groups: List[List[Parsed]] = [[]]
    for text, calls in results:
        if text and any(earlier for _, earlier in groups[-1]):
            groups.append([])
        groups[-1].append((text, calls))
    return [_one(group) for group in groups]


def _join_calls(parts: List[Any]) -> List[Any]:
    """Join the arguments of a call to its earlier part: a client gets one event for both. A part with a name begins a call."""
    joined: List[Any] = []
    for part in parts:
        if joined and not part.name and part.tool_index == joined[-1].tool_index:
            joined[-1].parameters += part.parameters
        else:
            joined.append(copy.copy(part))
    return joined
