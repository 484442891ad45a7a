"""Tests that a parser of tool calls gets each chunk token by token, with a fake parser of vLLM."""
import types

import pytest

import afterbay_vllm
from afterbay_vllm import tool_calls

VOCABULARY = {1: "<call>", 2: "{", 3: "", 4: "é", 5: "}", 6: "</call>"}
TOOLS = types.SimpleNamespace(tools=["get_weather"])


class Fields:
    """As vLLM's pydantic models: a field that was not set is None, or an empty list for `tool_calls`."""

    defaults = {"tool_calls": []}

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def __getattr__(self, name):
        return Fields.defaults.get(name)

    @property
    def model_fields_set(self):
        return set(self.__dict__)


def as_dict(value):
    if isinstance(value, Fields):
        return {name: as_dict(content) for name, content in vars(value).items()}
    return [as_dict(one) for one in value] if isinstance(value, list) else value


def call(index, name=None, arguments=None, **fields):
    function = Fields(**{key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None})
    return Fields(index=index, function=function, **fields)


class Parser:
    tool_parser_cls = object
    model_tokenizer = None

    def __init__(self):
        self.parsed = []

    def parse_delta(self, delta_text, delta_token_ids, request, prompt_token_ids=None, *, finished):
        self.parsed.append((delta_text, delta_token_ids, finished))
        return Fields(content=delta_text) if delta_text else None


@pytest.fixture
def parser_of(fake_vllm, monkeypatch, tmp_path):
    """Returns a parser as the API server makes it, with the connector loaded."""
    monkeypatch.setenv("AFTERBAY_CREDIT", str(tmp_path))
    monkeypatch.setattr(tool_calls, "decoder", lambda tokenizer, request, prompt: VOCABULARY.__getitem__)

    def make(base=Parser):
        fake_vllm.ParserManager.parser = base
        afterbay_vllm.register()
        return fake_vllm.ParserManager.get_parser(tool_parser_name="one", enable_auto_tools=True)

    return make


def test_a_chunk_is_parsed_token_by_token_and_sent_as_one_message(parser_of):
    parser = parser_of()()
    message = parser.parse_delta("<call>{é}", [1, 2, 3, 4, 5], TOOLS, [9], finished=False)
    assert parser.parsed == [("<call>", [1], False), ("{", [2], False), ("", [3], False), ("é", [4], False), ("}", [5], False)]
    assert as_dict(message) == {"content": "<call>{é}"}


def test_only_the_last_token_of_the_last_chunk_is_finished(parser_of):
    parser = parser_of()()
    parser.parse_delta("{", [2, 3], TOOLS, finished=False)
    # The text of a stop token is left out.
    assert parser.parse_delta("é}", [4, 5, 6], TOOLS, finished=True) is not None
    assert parser.parsed == [("{", [2], False), ("", [3], False), ("é", [4], False), ("}", [5], False), ("", [6], True)]


def test_text_that_a_stop_string_holds_back_comes_with_the_token_that_releases_it(parser_of):
    parser = parser_of()()
    parser.parse_delta("<cal", [1], TOOLS, finished=False)
    parser.parse_delta("l>{", [2, 3, 4, 5], TOOLS, finished=False)
    parser.parse_delta("é}", [], TOOLS, finished=True)
    assert parser.parsed == [("<cal", [1], False), ("l", [2], False), ("", [3], False), (">", [4], False), ("{", [5], False), ("é}", [], True)]


def test_text_that_vllm_made_in_another_way_is_parsed_in_pieces(parser_of):
    parser = parser_of()()
    parser.parse_delta("<call> a", [1, 2, 3], TOOLS, finished=True)
    assert parser.parsed == [("<call>", [1], False), (" a", [2, 3], True)]
    parser.parse_delta("{}", [2, 5], TOOLS, finished=False)
    assert parser.parsed[2:] == [("{", [2], False), ("}", [5], False)]


def test_a_request_without_tools_is_parsed_as_it_comes(parser_of):
    parser = parser_of()()
    parser.parse_delta("{}", [2, 5], types.SimpleNamespace(tools=None), finished=True)
    assert parser.parsed == [("{}", [2, 5], True)]


def test_a_server_without_a_parser_of_tool_calls_keeps_its_class(parser_of):
    class Reasoning(Parser):
        tool_parser_cls = None

    assert parser_of(Reasoning) is Reasoning
    assert parser_of(None) is None


def test_each_stream_has_its_own_text(parser_of):
    make = parser_of()
    first, second = make(), make()
    first.parse_delta("<ca", [1], TOOLS, finished=False)
    second.parse_delta("{}", [2, 5], TOOLS, finished=False)
    assert second.parsed == [("{", [2], False), ("}", [5], False)]
    assert make.__name__ == "Parser"


def test_the_parts_of_a_call_become_one_part_for_the_client():
    parts = [
        Fields(role="assistant", content="a"),
        None,
        Fields(content=None, reasoning="why", tool_calls=[call(0, "get_weather", id="c0", type="function")]),
        Fields(role="assistant", tool_calls=[call(0, arguments='{"city"')]),
        Fields(tool_calls=[call(0, arguments=': "Tokyo"}'), call(1, "get_time", "{", id="c1", type="function")]),
        Fields(content="b", tool_calls=[call(1, arguments="}")]),
    ]
    assert as_dict(tool_calls.merged(parts)) == {
        "role": "assistant",
        "content": "ab",
        "reasoning": "why",
        "tool_calls": [
            {"index": 0, "id": "c0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Tokyo"}'}},
            {"index": 1, "id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
        ],
    }
    assert tool_calls.merged([None, None]) is None


def test_a_vllm_whose_parsers_cannot_be_hooked_starts_and_is_named_in_a_warning(fake_vllm, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(fake_vllm.ParserManager, "get_parser", lambda name: Parser)
    monkeypatch.setenv("AFTERBAY_CREDIT", str(tmp_path))
    afterbay_vllm.register()
    assert fake_vllm.ParserManager.get_parser("one") is Parser
    assert "vLLM 0.32.0: its parsers of tool calls cannot be hooked" in caplog.text
