"""Tests the division of a text into pieces for a parser."""
import random

import pytest

from afterbay_connector.pieces import MARKER_CHARS_MAX, WORD_CHARS_MAX, WORDS_MAX, pieces


@pytest.mark.parametrize(
    "marker",
    ["<tool_call>", "</tool_call>", "<|python_tag|>", "<｜tool▁calls▁begin｜>", "[TOOL_CALLS]", "[/INST]", "<minimax:tool_call>", "<ifm|arg_key>", "<|action_start|> <|plugin|>"],
)
def test_a_marker_is_one_piece_between_any_neighbours(marker):
    assert pieces(f"a{marker}{marker}{{") == ["a", marker, marker, "{"]


def test_brackets_around_json_are_no_marker():
    assert "<" in pieces('{"a":"<b"};{"c":">"}')
    assert pieces("a <b and c>") == ["a", " ", "<", "b and c", ">"]


def test_signs_are_pieces_and_words_between_them_and_escapes_stay_whole():
    assert pieces(r'{"city": "New York\n\"\ud83d\ude00é"}') == ["{", '"', "city", '"', ":", " ", '"', "New York", r"\n", r"\"", r"\ud83d\ude00", "é", '"', "}"]
    assert pieces("1 2 3 4 5 6 7 8 9 10\n") == ["1 2 3 4 5 6 7 8", " 9 10", "\n"]


def test_the_pieces_of_any_text_are_the_text_and_are_short():
    rnd = random.Random(1)
    for _ in range(500):
        text = "".join(rnd.choice(["<", ">", "|", "<|a|>", "[", "]", "\\", "u00e9", " ", "\n", "word", "日本", "😀", '"', "x" * 40, "7" * 9, "\ud83d"]) for _ in range(rnd.randrange(30)))
        found = pieces(text)
        assert "".join(found) == text
        assert all(0 < len(piece) <= max(2 * MARKER_CHARS_MAX + 5, WORDS_MAX * (WORD_CHARS_MAX + 1)) for piece in found)
    assert pieces("") == []
    assert max(map(len, pieces("x" * 1000))) == WORD_CHARS_MAX
