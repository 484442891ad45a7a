"""What a client receives from SGLang's own serving_chat for the chunks of an answer. Runs in SGLang's Python, without a model.

The tokenizer manager is a stub that answers with given texts; everything behind it is SGLang's: parsers, events, and the Anthropic API.
"""
import asyncio
import json
import types

import tool_call_texts as texts


class Answers:
    """A tokenizer manager that answers with chunks of text."""

    tokenizer = None

    def __init__(self, chunks):
        self.chunks = chunks

    async def generate_request(self, _request, _raw_request):
        for number, text in enumerate(self.chunks, 1):
            last = number == len(self.chunks)
            meta = {"id": "r", "prompt_tokens": 1, "completion_tokens": number, "finish_reason": {"type": "stop", "matched": None} if last else None}
            yield {"text": text, "meta_info": meta, "index": 0}


def publish():
    """Set the settings that serving_chat reads: each chunk has only its own text."""
    from sglang.srt.entrypoints.openai import serving_chat

    class Fields:
        incremental_streaming_output = True

        def __getattr__(self, _name):
            return False

    serving_chat.get_serving = Fields


def serving(parser, manager, reasoning=None):
    """SGLang's OpenAIServingChat with this parser, without the model's configuration."""
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

    chat = OpenAIServingChat.__new__(OpenAIServingChat)
    chat.tokenizer_manager, chat.template_manager = manager, types.SimpleNamespace(force_reasoning=False, reasoning_config=None)
    chat.tool_call_parser, chat.reasoning_parser = parser, reasoning
    chat.chat_encoding_spec = chat._encoding_adapter = chat._response_parser = chat._reasoning_detector = None
    chat.default_chat_template_kwargs = {}
    chat.is_gpt_oss = chat.is_gemma4 = chat.is_minimax_m3 = False
    return chat


def request(calls, **more):
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "?"}], tools=texts.tools(calls), stream=True, **more)


async def _events(stream):
    return [event async for event in stream]


def chat_events(parser, chunks, calls, reasoning=None, **more):
    """The events of /v1/chat/completions."""
    chat = serving(parser, Answers(chunks), reasoning)
    return asyncio.run(_events(chat._generate_chat_stream(None, request(calls, **more), None)))


def messages_events(parser, chunks, calls):
    """The events of Anthropic's /v1/messages."""
    from sglang.srt.entrypoints.anthropic.serving import AnthropicServing

    chat = serving(parser, Answers(chunks))
    chat._is_gemma4 = False
    chat.supports_inline_system = True
    asked = types.SimpleNamespace(model="m")
    return asyncio.run(_events(AnthropicServing(chat)._generate_anthropic_stream(None, request(calls), asked, None)))


def read(events):
    """Return the content, the thinking and the calls of chat events. Arguments that are no JSON stay text."""
    content, thinking, calls = "", "", {}
    for event in events:
        if not event.startswith("data: {"):
            continue
        for choice in json.loads(event[len("data: ") :]).get("choices", []):
            delta = choice["delta"]
            content += delta.get("content") or ""
            thinking += delta.get("reasoning_content") or ""
            for part in delta.get("tool_calls") or []:
                call = calls.setdefault(part["index"], ["", ""])
                call[0] += part["function"].get("name") or ""
                call[1] += part["function"].get("arguments") or ""
    return content, thinking, [[name, _json(arguments)] for _, (name, arguments) in sorted(calls.items())]


def read_messages(events):
    """Return the text and the calls of Anthropic's events."""
    text, calls = "", {}
    for event in "".join(events).split("\n"):
        if not event.startswith("data: {"):
            continue
        event = json.loads(event[len("data: ") :])
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls[event["index"]] = [event["content_block"]["name"], ""]
        elif event["type"] == "content_block_delta":
            text += event["delta"].get("text", "")
            if "partial_json" in event["delta"]:
                calls[event["index"]][1] += event["delta"]["partial_json"]
    return text, [[name, _json(arguments)] for name, arguments in calls.values()]


def _json(text):
    try:
        return json.loads(text)
    except ValueError:
        return text
