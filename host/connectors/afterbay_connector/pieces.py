"""Splits a chunk of text into pieces that are about as long as a token.

A streaming parser of tool calls expects one token at a time. The connector of an engine gives it the pieces of a chunk one after
the other, whatever made the chunk longer than a token. This module must not know any parser or tokenizer.
"""
from __future__ import annotations

import re
from typing import List

# Longer words are divided, as a tokenizer divides them.
WORD_CHARS_MAX = 16
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
    | [ ]?[A-Za-z_]{{1,{WORD_CHARS_MAX}}}        # a word with its space
    | [ ]?[0-9]{{1,3}}
    | \s
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def pieces(text: str) -> List[str]:
    """Return the pieces of `text`, which joined are `text` again. An empty text has no piece."""
    return _PIECE.findall(text)
