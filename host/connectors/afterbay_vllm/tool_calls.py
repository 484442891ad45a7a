"""Gives vLLM's parser of tool calls each chunk token by token, whatever made the chunk longer: Afterbay, speculation, or
`--stream-interval`.

Many parsers advance one step for each chunk, and lose arguments when a chunk has several tokens. Every parser, also one of
`--tool-parser-plugin`, becomes a class in `ParserManager.get_parser`, and the class is extended there. This module must not know
a format of tool calls.
"""
from __future__ import annotations

import types
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple

from afterbay_connector import front_end
from afterbay_connector.pieces import pieces

NOT_HOOKED = "its parsers of tool calls cannot be hooked. A chunk of several tokens may lose arguments of a tool call"


def find_front_end() -> None:
    front_end.find({"dynamo": "Dynamo's front end"})


def by_token(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the parser's class, extended if it parses tool calls."""
    parser = original(*args, **kwargs)
    if parser is None or parser.tool_parser_cls is None:
        return parser

    class ByToken(parser):  # type: ignore[misc, valid-type]
        _afterbay_tokens: Optional[Tokens] = None

        def parse_delta(
            self, delta_text: str, delta_token_ids: List[int], request: Any, prompt_token_ids: Optional[List[int]] = None, *, finished: bool
        ) -> Any:
            parse = super().parse_delta
            if not request.tools:
                return parse(delta_text, delta_token_ids, request, prompt_token_ids, finished=finished)
            if self._afterbay_tokens is None:
                self._afterbay_tokens = Tokens(decoder(self.model_tokenizer, request, prompt_token_ids))
            tokens = self._afterbay_tokens.split(delta_text, delta_token_ids, finished)
            messages = []
            for number, (text, ids) in enumerate(tokens, 1):
                messages.append(parse(text, ids, request, prompt_token_ids, finished=finished and number == len(tokens)))
            return merged(messages)

    ByToken.__name__, ByToken.__qualname__, ByToken.__module__ = parser.__name__, parser.__qualname__, parser.__module__
    return ByToken


class Tokens:
    """Divides a stream's chunks into tokens. `decode` returns the text that a token adds to the stream."""

    def __init__(self, decode: Callable[[int], str]):
        self._decode = decode
        # Text that is decoded here, and that vLLM holds back because a stop string may begin in it.
        self._held = ""

    def split(self, text: str, ids: Sequence[int], finished: bool) -> List[Tuple[str, List[int]]]:
        """Return the text and the ids of each token. The texts joined are `text`; a token inside a character has none."""
        ends = []
        decoded = self._held
        for token in ids:
            decoded += self._decode(token)
            ends.append(len(decoded))
        if not decoded.startswith(text):
            # vLLM made the text in another way: pieces of text stand in for tokens.
            self._held = ""
            return _pieces(text, ids)
        self._held = decoded[len(text) :]
        if len(ids) < 2:
            return [(text, list(ids))]
        # Without joining, vLLM would have held back as many characters after each token.
        held = 0 if finished else len(self._held)
        cuts = [min(max(end - held, 0), len(text)) for end in ends]
        cuts[-1] = len(text)
        return [(text[start:end], [token]) for start, end, token in zip([0, *cuts], cuts, ids)]


def _pieces(text: str, ids: Sequence[int]) -> List[Tuple[str, List[int]]]:
    texts = pieces(text)
    if len(ids) < 2 or len(texts) < 2:
        return [(text, list(ids))]
    last = len(texts) - 1
    return [(piece, list(ids[number:] if number == last else ids[number : number + 1])) for number, piece in enumerate(texts)]


def decoder(tokenizer: Any, request: Any, prompt_token_ids: Optional[List[int]]) -> Callable[[int], str]:
    """Return vLLM's own incremental decoder for a stream, with the settings that the request's text was made with."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    skip = request.skip_special_tokens
    # A request of Responses has no such field up to vLLM 0.32.
    spaces = getattr(request, "spaces_between_special_tokens", True)
    params = SamplingParams(skip_special_tokens=skip is None or skip, spaces_between_special_tokens=spaces)
    stream = types.SimpleNamespace(request_id="", sampling_params=params, prompt_token_ids=list(prompt_token_ids or []), prompt_embeds=None)
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, stream)

    def decode(token: int) -> str:
        # The slow detokenizer reads the ids from the list.
        detokenizer.token_ids.append(token)
        return detokenizer.decode_next(token)

    return decode


HOOK = ("vllm.parser.parser_manager:ParserManager.get_parser", "tool_parser_name", by_token)


def merged(messages: Iterable[Any]) -> Any:
    """Return one message with the content of all, as a client would put them together. None if there is none."""
    whole, *rest = [message for message in messages if message is not None] or [None]
    for message in rest:
        for name in message.model_fields_set:
            old, new = getattr(whole, name, None), getattr(message, name)
            if name == "tool_calls":
                new = _joined_calls(old, new)
            elif new is not None and isinstance(old, (str, list)) and name != "role":
                new = old + new
            if new is not None:
                # vLLM sends the fields that were assigned. A list that grows in place would not be sent.
                setattr(whole, name, new)
    return whole


def _joined_calls(old: Sequence[Any], new: Sequence[Any]) -> List[Any]:
    calls = list(old)
    for call in new:
        earlier = next((one for one in reversed(calls) if one.index == call.index), None)
        if earlier is None:
            calls.append(call)
            continue
        for name in call.model_fields_set:
            if getattr(earlier, name) is None:
                setattr(earlier, name, getattr(call, name))
            elif name == "function" and call.function is not None:
                for part in call.function.model_fields_set:
                    text = (getattr(earlier.function, part) or "") + (getattr(call.function, part) or "")
                    setattr(earlier.function, part, text)
    return calls
