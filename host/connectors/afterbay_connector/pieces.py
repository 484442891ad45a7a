"""Splits a chunk of text into pieces for a streaming parser of tool calls.

Such a parser expects one token at a time: it takes one step for each chunk. The connector of an engine gives it the pieces of a
chunk one after the other, whatever made the chunk longer than a token. Markers and signs are pieces of their own. Words between
them stay together, because a parser takes no step there, and each piece costs one. This module must not know any parser or
tokenizer.
"""
from __future__ import annotations

import re
from typing import List

# Longer words are divided, as a tokenizer divides them.
WORD_CHARS_MAX = 16
WORDS_MAX = 8
# A marker is one token of its model, so it stays one piece. Longer text between brackets is no marker, nor is text with characters
# of JSON: a piece would reach from one call into the next.
MARKER_CHARS_MAX = 64
_MARKER = rf"<[^<>\s\"'{{}}\[\](),;]{{1,{MARKER_CHARS_MAX}}}>"
_PIECE = re.compile(
    rf"""
      {_MARKER}(?:[ ]<\|\w+\|>)?             # <|python_tag|>, </tool_call>, <|action_start|> <|plugin|>
    | \[/?[A-Z_]{{2,{MARKER_CHARS_MAX}}}\]       # [TOOL_CALLS]
    | (?:\\u[0-9a-fA-F]{{4}}){{1,2}}             # a character of JSON, also one of two halves
    | \\.                                        # another escape of JSON
    | [ ]?\w{{1,{WORD_CHARS_MAX}}}(?:[ ]\w{{1,{WORD_CHARS_MAX}}}){{0,{WORDS_MAX - 1}}}
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def pieces(text: str) -> List[str]:
    """Return the pieces of `text`, which joined are `text` again. An empty text has no piece."""
    return _PIECE.findall(text)
