"""Tests the message with the record of a request."""
import json
import types
from array import array

import pytest

from afterbay_connector import request_record


def read(message):
    line, ids = message.split(b"\n", 1)
    return json.loads(line), list(array("I", ids))


def test_a_record_is_a_line_of_json_and_the_ids_behind_it():
    message = request_record.encode('a"\n', [1, 70_000], lora="sql", session=None)
    assert message == b'{"afterbay":"request","rid":"a\\"\\n","prompt_tokens":2,"lora":"sql"}\n' + array("I", [1, 70_000]).tobytes()


@pytest.mark.parametrize("ids", [list(range(1000)), array("q", range(1000)), array("q", [4_294_967_295] * 300), array("q", [3]), range(5), []], ids=["list", "long array", "large", "short array", "range", "empty"])
def test_ids_are_read_from_lists_and_arrays(ids):
    assert read(request_record.encode("a", ids))[1] == list(ids)


@pytest.mark.parametrize("ids", [[-1], [1 << 32], array("q", [0] * 300 + [-1]), array("q", [1 << 40] * 300), [None], list(range(request_record.PROMPT_IDS_MAX + 1))])
def test_ids_that_are_no_u32_and_a_prompt_over_the_bound_are_left_out(ids):
    assert read(request_record.encode("a", ids)) == ({"afterbay": "request", "rid": "a", "prompt_tokens": len(ids), "left_out": ["prompt_ids"]}, [])


def test_a_prompt_without_ids_has_a_count():
    assert read(request_record.encode("a", None, 7)) == ({"afterbay": "request", "rid": "a", "prompt_tokens": 7}, [])


def test_the_longest_fields_are_left_out_until_the_line_is_within_its_bound():
    long = "x" * request_record.HEADER_BYTES_MAX
    content, ids = read(request_record.encode("a", [1], grammar={"value": long}, session=long[:40_000], routing_key=long[:30_000], lora="sql"))
    assert (content["left_out"], ids) == (["grammar", "session"], [1])
    assert (content["lora"], len(content["routing_key"])) == ("sql", 30_000)
    assert read(request_record.encode("a", None, routing_key=long[:60_000], lora="sql"))[0]["routing_key"] == long[:60_000]


def test_a_field_that_is_no_json_is_left_out_and_the_others_stay():
    content, _ = read(request_record.encode("a", [-1], sampling={"seed": object()}, session="\ud800", lora="sql"))
    assert {**content, "left_out": sorted(content["left_out"])} == {"afterbay": "request", "rid": "a", "prompt_tokens": 1, "lora": "sql", "left_out": ["prompt_ids", "sampling", "session"]}


@pytest.mark.parametrize("rid", [None, "", "x" * 4097, "é" * 2049, "\ud800", ["a"]])
def test_a_rid_whose_rows_afterbay_does_not_read_has_no_record(rid):
    assert request_record.encode(rid, [1]) is None


def test_defaults_are_left_out():
    params = types.SimpleNamespace(top_k=-1, n=2, seed=None, ignore_eos=False)
    fields = [("top_k", "top_k", (-1, 0)), ("n", "n", (1,)), ("seed", "seed", ()), ("ignore_eos", "ignore_eos", (False,)), ("min_p", "min_p", (0,))]
    assert request_record.given(params, fields) == {"n": 2}


def test_the_size_of_an_input_is_that_of_its_tensors():
    tensor = types.SimpleNamespace(nbytes=8)
    assert request_record.input_bytes([tensor, {"a": (tensor, None)}, "text"]) == 16
