"""Tests the attributes that a scheduler sends, with fakes of SGLang's scheduler and requests, and with the real ones."""
import json
import types

import pytest

from conftest import SenderWrapper
from afterbay_sglang import attributes


class Socket:
    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(json.loads(message))


def scheduler(socket, **known):
    return types.SimpleNamespace(send_to_detokenizer=SenderWrapper(socket), **known)


def request(**fields):
    return types.SimpleNamespace(**{"rid": "r", "lora_id": None, **fields})


def with_adapters(**refs):
    """A scheduler of SGLang 0.5.22, which knows adapters by their ids."""
    runner = types.SimpleNamespace(lora_manager=types.SimpleNamespace(lora_refs={lora_id: types.SimpleNamespace(lora_name=name) for lora_id, name in refs.items()}))
    return {"tp_worker": types.SimpleNamespace(model_runner=runner)}


@pytest.mark.parametrize(
    "fields, known, lora",
    [
        ({"lora_id": "f00", "lora_name": "sql"}, {}, "sql"),
        ({"lora_id": "f00"}, with_adapters(f00="sql"), "sql"),
        ({"lora_id": "f00"}, with_adapters(other="qa"), "f00"),
        ({"lora_id": "f00", "lora_name": None}, {}, "f00"),
    ],
    ids=["name", "by id", "unknown id", "no adapters"],
)
def test_the_name_of_the_adapter_is_sent_before_the_scheduler_gets_the_request(fields, known, lora):
    socket, got = Socket(), []
    announced = attributes.announce(lambda scheduler, request, **rest: got.append((len(socket.sent), rest)), scheduler(socket, **known), request(**fields), mm_input_error=None)
    assert (announced, got) == (None, [(1, {"mm_input_error": None})])
    assert socket.sent == [{"afterbay": "attributes", "rid": "r", "attributes": {"lora": lora}}]


def test_nothing_is_sent_for_the_base_model_and_by_a_rank_that_sends_no_output():
    socket, got = Socket(), []
    for one, fields in [(scheduler(socket), {}), (scheduler(socket), {"lora_name": None}), (scheduler(None), {"lora_id": "f00", "lora_name": "sql"})]:
        attributes.announce(lambda scheduler, request: got.append(request.rid), one, request(**fields))
    assert (socket.sent, got) == ([], ["r"] * 3)


def test_requests_of_the_installed_version_have_the_fields_that_name_an_adapter(real_sglang, on_path):
    code = """
import json, msgspec, dataclasses
from sglang.srt.managers import io_struct
fields = [field.name for field in (msgspec.structs.fields if issubclass(io_struct.TokenizedGenerateReqInput, msgspec.Struct) else dataclasses.fields)(io_struct.TokenizedGenerateReqInput)]
print(json.dumps([name in fields for name in ("rid", "lora_id")]))
"""
    assert real_sglang.answer(code, path=[on_path]) == [True, True]
