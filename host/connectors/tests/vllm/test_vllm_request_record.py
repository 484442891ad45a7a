"""Tests the records that an EngineCore sends, with a fake vLLM, and with requests of the installed one."""
import json
import queue
import sys
import types
from array import array

import pytest

import afterbay_vllm
from afterbay_vllm import request_record


@pytest.fixture
def core(fake_vllm, monkeypatch, engine):
    """An EngineCore with two API servers."""
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a,ipc:///b")
    afterbay_vllm.register()
    core = fake_vllm.EngineCoreProc()
    core.output_queue = queue.Queue()
    vars(core).update(vars(engine(("ipc:///out0", "ipc:///out1"))))
    core.scheduler = fake_vllm.Scheduler("config")
    vars(core.scheduler).update(vllm_config=core.vllm_config)
    core.process_output_sockets(["ipc:///out0", "ipc:///out1"], "ipc:///coordinator", 0)
    fake_vllm.sent.clear()
    return core


def request(request_id, client_index=0, **fields):
    return types.SimpleNamespace(**{"request_id": request_id, "client_index": client_index, "prompt_token_ids": [1, 70_000], "arrival_time": 2.0, **fields})


def read(message):
    line, ids = message.split(b"\n", 1)
    return json.loads(line), list(array("I", ids))


def test_the_thread_of_the_outputs_sends_the_record_before_the_requests_first_frame(core, fake_vllm):
    prepared = core.preprocess_add_request(request("r", 1, lora_request=types.SimpleNamespace(lora_name="sql"), priority=0))
    core.output_queue.put((1, "a frame of r"))
    assert prepared[1] == 3 and fake_vllm.calls[-1] == ("request", "r")
    assert core.output_queue.get() == (1, "a frame of r")
    [(path, message)] = fake_vllm.sent
    assert path == "ipc:///b"
    assert read(message) == ({"afterbay": "request", "rid": "r", "prompt_tokens": 2, "arrived_unix_ns": 2_000_000_000, "model": "m", "lora": "sql"}, [1, 70_000])


def test_a_further_turn_of_a_session_has_a_record_behind_the_end_of_the_turn_before(core, fake_vllm):
    core.preprocess_add_request(request("s", resumable=True))
    for status, end in [("WAITING_FOR_STREAMING_REQ", "end 1"), ("FINISHED_STOPPED", "end 2")]:
        session = request("s", 0, resumable=True, status=types.SimpleNamespace(name=status))
        core.scheduler._update_request_as_session(session, update=[8])
        for output in [(1, f"{end} of another"), (0, end), (0, f"behind {end}")]:
            core.output_queue.put(output)
    order = []
    for _ in range(6):
        frame = core.output_queue.get()
        order += [read(message)[1] for _, message in fake_vllm.sent] + [frame[1]]
        fake_vllm.sent.clear()
    first, turn = [1, 70_000], [1, 70_000, 8]
    assert order == [first, turn, "end 1 of another", "end 1", "behind end 1", "end 2 of another", "end 2", turn, "behind end 2"]


def test_a_turn_of_an_engine_without_a_queue_changes_nothing(fake_vllm, monkeypatch):
    monkeypatch.setenv("AFTERBAY_INGRESS", "ipc:///a")
    afterbay_vllm.register()
    session = request("s", status=types.SimpleNamespace(name="FINISHED_STOPPED"))
    fake_vllm.Scheduler("config")._update_request_as_session(session, [8])
    assert session.prompt_token_ids == [1, 70_000, 8]


def test_inputs_of_a_session_have_one_record_and_a_later_one_of_the_same_id_another(core, fake_vllm):
    for resumable in (True, True, False, False):
        core.preprocess_add_request(request("s", resumable=resumable))
    core.output_queue.put(b"dead")
    assert core.output_queue.get() == b"dead"
    said = [read(message)[0] for _, message in fake_vllm.sent]
    assert [(one.get("session"), one.get("resumable")) for one in said] == [("s", True), (None, None)]


def test_sessions_without_an_end_are_bounded(core, monkeypatch):
    monkeypatch.setattr(request_record, "SESSIONS_MAX", 2)
    for number in range(4):
        core.preprocess_add_request(request(f"s{number}", resumable=True))
    assert list(core._afterbay_sessions) == ["s2", "s3"]


def test_a_request_that_vllm_refuses_has_its_record_before_the_row_with_the_error(core, fake_vllm):
    with pytest.raises(ValueError, match="bad request"):
        core.preprocess_add_request(request("bad"))
    core.output_queue.put((0, "a frame with the error"))
    assert core.output_queue.get() == (0, "a frame with the error") and len(fake_vllm.sent) == 1


def test_an_engine_in_the_process_of_its_client_and_a_record_that_fails_change_nothing(core, fake_vllm, caplog):
    fake_vllm.EngineCore().preprocess_add_request(request("r"))
    assert fake_vllm.calls[-1] == ("request", "r")
    for _ in range(2):
        assert core.preprocess_add_request(types.SimpleNamespace(request_id="r", client_index=0))[1] == 3
    assert core.output_queue.empty() and caplog.text.count("requests have no record") == 1


def test_the_parameters_of_the_installed_version_are_in_the_record(real_vllm, on_path):
    code = """
import json, types
import torch
from vllm.multimodal.inputs import MultiModalFeatureSpec, MultiModalKwargsItem, PlaceholderRange
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine import EngineCoreRequest
from afterbay_vllm import request_record
model = types.SimpleNamespace(served_model_name="m", get_vocab_size=lambda: 2048)
engine = types.SimpleNamespace(vllm_config=types.SimpleNamespace(model_config=model, parallel_config=types.SimpleNamespace(data_parallel_size=2, data_parallel_rank=1)))
def record(params, **fields):
    given = dict(request_id="r", prompt_token_ids=[5, 6], mm_features=None, sampling_params=params, pooling_params=None, arrival_time=1.5, lora_request=None, cache_salt=None, data_parallel_rank=None)
    line, ids = request_record._record(engine, EngineCoreRequest(**{**given, **fields})).split(b"\\n", 1)
    return json.loads(line)
full = SamplingParams(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3, stop=["a", "b"], stop_token_ids=[9], max_tokens=5, min_tokens=1, n=2, ignore_eos=True,
    frequency_penalty=0.1, presence_penalty=0.2, repetition_penalty=1.1, logprobs=-1, prompt_logprobs=1, structured_outputs=StructuredOutputsParams(choice=["x", "y"]), logit_bias={1: 0.5}, bad_words=["x"])
image = MultiModalFeatureSpec(data=MultiModalKwargsItem.dummy(64), modality="image", identifier="lora-h", mm_position=PlaceholderRange(offset=1, length=4), mm_hash="h")
grammars = [StructuredOutputsParams(json={"type": "object"}), StructuredOutputsParams(json_object=True), StructuredOutputsParams(grammar="root ::= x")]
traced = dict(trace_headers={"traceparent": "00-a-b-01", "other": "x"}, priority=2, session_id="s", mm_features=[image])
embeds = dict(prompt_token_ids=None, prompt_embeds=torch.zeros(3, 8))
print(json.dumps([record(full, **traced), record(SamplingParams(), **embeds), [record(SamplingParams(structured_outputs=one))["grammar"] for one in grammars]]))
"""
    done = real_vllm.run(code, path=[on_path])
    assert done.returncode == 0, done.stderr[-2000:]
    full, plain, grammars = json.loads(done.stdout.strip().splitlines()[-1])
    common = {"afterbay": "request", "rid": "r", "arrived_unix_ns": 1_500_000_000, "model": "m", "data_parallel_rank": 1}
    assert full == {
        **common,
        "prompt_tokens": 2,
        "sampling": dict(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3, stop=["a", "b"], stop_token_ids=[9], max_tokens=5, min_tokens=1, n=2, ignore_eos=True)
        | dict(frequency_penalty=0.1, presence_penalty=0.2, repetition_penalty=1.1),
        "unrecorded": ["bad_words", "logit_bias"],
        "grammar": {"kind": "choice", "value": '["x","y"]', "enforced": True},
        "logprobs": {"top": 2048, "prompt": True},
        "session": "s",
        "priority": 2,
        "trace": {"traceparent": "00-a-b-01"},
        "multimodal": [{"modality": "image", "hash": "h", "bytes": 64, "tokens": 4}],
    }
    assert plain == {**common, "prompt_tokens": 3, "sampling": {"max_tokens": 16}}
    assert grammars == [
        {"kind": "json_schema", "value": '{"type":"object"}', "enforced": True},
        {"kind": "json_object", "value": "", "enforced": True},
        {"kind": "ebnf", "value": "root ::= x", "enforced": True},
    ]
