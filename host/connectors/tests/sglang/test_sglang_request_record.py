"""Tests the records that a scheduler sends, with fakes of SGLang's scheduler and requests, and with the real ones."""
import json
import types
from array import array

import pytest

from conftest import SenderWrapper
from afterbay_sglang import request_record


class Socket:
    def __init__(self):
        self.sent = []

    def send(self, message):
        line, ids = message.split(b"\n", 1)
        self.sent.append((json.loads(line), list(array("I", ids))))


def scheduler(socket, **known):
    known = {"server_args": types.SimpleNamespace(model_path="/models/m"), **known}
    return types.SimpleNamespace(send_to_detokenizer=SenderWrapper(socket), **known)


def request(**fields):
    return types.SimpleNamespace(**{"rid": "r", "input_ids": array("q", [1, 70_000]), "lora_id": None, **fields})


def with_adapters(**refs):
    """A scheduler of SGLang 0.5.22, which knows adapters by their ids."""
    runner = types.SimpleNamespace(lora_manager=types.SimpleNamespace(lora_refs={lora_id: types.SimpleNamespace(lora_name=name) for lora_id, name in refs.items()}))
    return {"tp_worker": types.SimpleNamespace(model_runner=runner)}


@pytest.fixture(autouse=True)
def no_turn(monkeypatch):
    monkeypatch.setattr(request_record, "_turn", None)


def test_the_record_is_sent_before_the_scheduler_gets_the_request():
    socket, got = Socket(), []
    announced = request_record.announce(lambda scheduler, request, **rest: got.append((len(socket.sent), rest)), scheduler(socket), request(), mm_input_error=None)
    assert (announced, got) == (None, [(1, {"mm_input_error": None})])
    [(content, ids)] = socket.sent
    assert content.pop("arrived_unix_ns") > 0
    assert (content, ids) == ({"afterbay": "request", "rid": "r", "prompt_tokens": 2, "model": "/models/m"}, [1, 70_000])


@pytest.mark.parametrize(
    "fields, known, lora",
    [
        ({"lora_id": "f00", "lora_name": "sql"}, {}, "sql"),
        ({"lora_id": "f00"}, with_adapters(f00="sql"), "sql"),
        ({"lora_id": "f00"}, with_adapters(other="qa"), "f00"),
        ({"lora_id": "f00", "lora_name": None}, {}, "f00"),
        ({"lora_name": None}, {}, None),
    ],
    ids=["name", "by id", "unknown id", "no adapters", "base model"],
)
def test_the_record_has_the_name_of_the_adapter(fields, known, lora):
    assert request_record.lora(scheduler(None, **known), request(**fields)) == lora


def test_a_rank_that_sends_no_output_sends_no_record():
    got = []
    request_record.announce(lambda scheduler, request: got.append(request.rid), scheduler(None), request())
    assert got == ["r"]


def test_a_record_that_fails_changes_nothing_and_is_logged_once(caplog):
    socket, got = Socket(), []
    for _ in range(2):
        request_record.announce(lambda scheduler, request: got.append(request.rid), scheduler(socket), request(mm_inputs=types.SimpleNamespace(mm_items=[None])))
    assert (socket.sent, got) == ([], ["r", "r"])
    assert caplog.text.count("requests have no record") == 1


def test_a_turn_of_a_session_has_the_prompt_that_the_session_makes_of_it():
    socket, turn = Socket(), request(session_params=types.SimpleNamespace(id="s"))

    def handle(scheduler, request):
        assert socket.sent == []
        request_record.turn_made(types.SimpleNamespace(origin_input_ids_unpadded=array("q", [8, 9, 1, 70_000])), "session", request)
        assert len(socket.sent) == 1

    request_record.announce(handle, scheduler(socket), turn)
    [(content, ids)] = socket.sent
    assert (content["session"], content["prompt_tokens"], ids) == ("s", 4, [8, 9, 1, 70_000])
    request_record.turn_made(None, "session", turn)
    assert len(socket.sent) == 1, "a session of which no request was announced"


def test_a_turn_of_an_unknown_session_has_its_own_ids():
    socket = Socket()
    request_record.announce(lambda scheduler, request: None, scheduler(socket), request(session_params=types.SimpleNamespace(id="s")))
    assert [ids for _, ids in socket.sent] == [[1, 70_000]]


def test_the_end_of_a_request_without_a_last_row_is_sent_before_the_tokenizer_gets_it():
    sent, told = [], []
    socket = types.SimpleNamespace(send=sent.append)
    one = scheduler(socket, send_to_tokenizer=types.SimpleNamespace(send_output=lambda output, receiver=None: told.append((len(sent), output.rid, receiver))))
    for _ in range(2):
        request_record.announce(lambda scheduler, request: None, one, request())
    sent.clear()
    abort, other = type("AbortReq", (), {"rid": "r"})(), types.SimpleNamespace(rid="load")
    one.send_to_tokenizer.send_output(abort, "request")
    one.send_to_tokenizer.send_output(other)
    assert (sent, told) == ([b'{"afterbay":"end","rid":"r"}'], [(1, "r", "request"), (1, "load", None)])


def test_requests_of_the_installed_version_are_recorded_with_their_parameters(real_sglang, on_path):
    code = """
import json, types
from array import array
import torch
from sglang.srt.managers.io_struct import SessionParams, TokenizedEmbeddingReqInput, TokenizedGenerateReqInput
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalProcessorOutput
from sglang.srt.sampling.sampling_params import SamplingParams
from afterbay_sglang import request_record
args = types.SimpleNamespace(served_model_name="m", model_path="/m", dp_size=2)
scheduler = types.SimpleNamespace(server_args=args, ps=types.SimpleNamespace(dp_rank=1), grammar_manager=types.SimpleNamespace(grammar_backend=None))
def record(kind, params, **fields):
    given = dict(rid="r", input_text=None, input_ids=array("q", [5, 6]), mm_inputs=None, token_type_ids=None, sampling_params=params)
    one = kind(**{**given, **fields})
    line, ids = request_record._record(scheduler, one, one.input_ids).split(b"\\n", 1)
    return json.loads(line)
def generate(params, **fields):
    # As a tokenizer does it.
    params.stop_strs = [params.stop] if params.stop else []
    params.is_normalized = True
    return record(TokenizedGenerateReqInput, params, **{**dict(input_embeds=None, return_logprob=False, logprob_start_len=-1, top_logprobs_num=0, token_ids_logprob=None, stream=True), **fields})
item = MultimodalDataItem(modality=Modality.IMAGE, hash=0xabc, offsets=[(1, 4), (6, 6)], feature=torch.zeros(4, dtype=torch.float32))
full = SamplingParams(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, sampling_seed=3, stop="a", stop_token_ids={9, 2}, max_new_tokens=5, min_new_tokens=1, n=2, ignore_eos=True,
    frequency_penalty=0.1, presence_penalty=0.2, repetition_penalty=1.1, regex="[a-z]+", logit_bias={"5": 1.0}, custom_params={"thinking_budget": 9})
of_sglang = SamplingParams(temperature=0, custom_params={"__sglang_reasoning_in_grammar": True})
fields = dict(custom_logit_processor="p", return_logprob=True, logprob_start_len=0, top_logprobs_num=4, lora_id="f", lora_name="sql", session_params=SessionParams(id="s"), priority=2, routing_key="k",
    bootstrap_host="h", bootstrap_port=1, bootstrap_room=1 << 60, mm_inputs=MultimodalProcessorOutput(mm_items=[item]))
print(json.dumps([generate(full, **fields), generate(of_sglang), generate(SamplingParams(), input_embeds=[[0.5]] * 3), record(TokenizedEmbeddingReqInput, SamplingParams())]))
"""
    full, greedy, embeds, embedding = real_sglang.answer(code, path=[on_path])
    common = {"afterbay": "request", "rid": "r", "model": "m", "data_parallel_rank": 1}
    for content in (full, greedy, embeds, embedding):
        assert content.pop("arrived_unix_ns") > 0
    assert full == {
        **common,
        "prompt_tokens": 2,
        "sampling": dict(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3, stop=["a"], stop_token_ids=[2, 9], max_tokens=5, min_tokens=1, n=2, ignore_eos=True)
        | dict(frequency_penalty=0.1, presence_penalty=0.2, repetition_penalty=1.1),
        "unrecorded": ["logit_bias", "custom_params", "custom_logit_processor"],
        "grammar": {"kind": "regex", "value": "[a-z]+", "enforced": False},
        "logprobs": {"top": 4, "prompt": True},
        "lora": "sql",
        "session": "s",
        "priority": 2,
        "stream": True,
        "routing_key": "k",
        "bootstrap": {"host": "h", "port": 1, "room": 1 << 60},
        "multimodal": [{"modality": "image", "hash": "0000000000000abc", "bytes": 16, "tokens": 5}],
    }
    assert greedy["sampling"] == {"top_k": 1, "max_tokens": 128}, "SGLang has made top_k 1 of temperature 0"
    assert "unrecorded" not in greedy and "unrecorded" not in embedding
    assert (embeds["prompt_tokens"], "sampling" in embedding, embedding["prompt_tokens"]) == (3, False, 2)
