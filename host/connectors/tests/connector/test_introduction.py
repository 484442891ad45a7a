"""Tests what a connector says of an engine's classes."""
import dataclasses
import json
import types
from typing import List, Optional

from afterbay_connector import introduction


def struct(fields, defaults=()):
    return type("Struct", (), {"__struct_encode_fields__": fields, "__struct_defaults__": defaults})


def test_a_struct_has_its_fields_in_order_and_the_last_ones_have_the_defaults():
    unknown = object()
    factory = types.SimpleNamespace(factory=list)
    kind = struct(("a", "b", "c", "d", "e"), (None, 0, unknown, factory))
    assert introduction.fields(kind) == [["a"], ["b", None], ["c", 0], ["d"], ["e", []]]


def test_a_dataclass_has_its_fields_in_order():
    @dataclasses.dataclass
    class Output:
        rids: List[str]
        load: Optional[int] = None
        ids: List[int] = dataclasses.field(default_factory=list)

    assert introduction.fields(Output) == [["rids"], ["load", None], ["ids", []]]


def test_a_class_without_fields_is_left_out():
    content = introduction.describe("e", "1", {"Known": struct(("a",)), "Other": object, "Missing": None})
    assert content["classes"] == {"Known": [["a"]]}


def test_the_message_begins_like_no_frame_and_is_json():
    content = introduction.describe("e", None, {}, rank=1)
    message = introduction.encode(content)
    assert message.startswith(b'{"afterbay":"introduction","format":1,')
    assert json.loads(message) == content
