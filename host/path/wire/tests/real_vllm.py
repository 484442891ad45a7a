"""Reads frames with the real vLLM 0.32.0: its own decoder and its own OutputProcessor.

usage: real_vllm.py RECORDS           exits 1 if a record fails, and says which

One JSON a line. A frame is a list of parts in hex. Records, by "what":
  equal     {"name", "one": FRAME, "other": FRAME}           both decode, to equal fields
  readable  {"name", "one": FRAME, "rows"}                   decodes to that number of rows
  state     {"name", "single": [FRAME..], "joined": [FRAME..]}   an OutputProcessor's clients end in the same state
  ends      {"name", "frames": [FRAME..], "requests": {RID: {"ids", "finish", "stop"}}}
            an OutputProcessor's clients have these ids and ends, and all text of the ids
  abort     {"name", "one": FRAME, "rid"}                    is the ABORT of that request alone
"""
import dataclasses
import enum
import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING", OMP_NUM_THREADS="1")

import msgspec
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest, EngineCoreRequestType
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.metrics.stats import IterationStats
from vllm.v1.serial_utils import MsgpackDecoder

DECODER = MsgpackDecoder(EngineCoreOutputs)


def tokenizer():
    """256 tokens of a byte each, whose id is the byte, so that characters are cut anywhere."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [char for char in alphabet if ord(char) < 256]
    # The other bytes have the characters from 256 on, in order.
    others = iter(char for char in alphabet if ord(char) >= 256)
    vocab = {chr(byte) if chr(byte) in printable else next(others): byte for byte in range(256)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


TOKENIZER = tokenizer()


def decode(frame):
    return DECODER.decode([bytes.fromhex(part) for part in frame])


def plain(value):
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), value.tolist()]
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.tolist()]
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name, None)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(value) for key, value in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(value) for value in value)
    if isinstance(value, (list, tuple)):
        return [plain(value) for value in value]
    if type(value).__name__ == "UtilityResult":
        return {"result": plain(value.result)}
    return value


def state(frames, kind):
    """What the client of each request has received in the end."""
    outputs = [decode(frame) for frame in frames]
    processor = OutputProcessor(TOKENIZER, log_stats=True, stream_interval=1)
    rids = {row.request_id: row for frame in outputs for row in frame.outputs}
    for rid, row in rids.items():
        logprobs = max((len(it.new_logprobs.logprob_token_ids[0]) - 1 for frame in outputs for it in frame.outputs if it.request_id == rid and it.new_logprobs is not None), default=None)
        params = SamplingParams(max_tokens=4000, logprobs=logprobs, output_kind=kind, skip_special_tokens=False)
        processor.add_request(EngineCoreRequest(request_id=rid, external_req_id=rid, prompt_token_ids=[5, 6, 7], mm_features=None, sampling_params=params, pooling_params=None, arrival_time=0.0, lora_request=None, cache_salt=None, data_parallel_rank=None), None)
    clients = {rid: dict(text="", ids=[], logprobs=[], cumulative=None, finish=None, stop=None) for rid in rids}
    delta = kind == RequestOutputKind.DELTA
    for frame in outputs:
        done = processor.process_outputs(frame.outputs, frame.timestamp, IterationStats())
        for output in done.request_outputs:
            client, it = clients[output.request_id], output.outputs[0]
            if delta:
                client["text"] += it.text
                client["ids"] += list(it.token_ids)
            else:
                client["text"], client["ids"] = it.text, list(it.token_ids)
            if it.logprobs is not None:
                entries = [{str(key): (round(value.logprob, 4), value.rank, value.decoded_token) for key, value in entry.items()} for entry in it.logprobs]
                if not delta:
                    client["logprobs"] = entries
                elif it.token_ids:
                    client["logprobs"] += entries
            client["cumulative"] = None if it.cumulative_logprob is None else round(it.cumulative_logprob, 3)
            client["finish"], client["stop"] = it.finish_reason, it.stop_reason
    return clients


KINDS = (RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE)


def check(record):
    what = record["what"]
    if what == "equal":
        one, other = plain(decode(record["one"])), plain(decode(record["other"]))
        return None if one == other else f"{one}\n{other}"
    if what == "readable":
        rows = len(decode(record["one"]).outputs)
        return None if rows == record["rows"] else f"{rows} rows, not {record['rows']}"
    if what == "state":
        for kind in KINDS:
            one, other = state(record["single"], kind), state(record["joined"], kind)
            if one != other:
                return f"{kind.name}\n{one}\n{other}"
        return None
    if what == "ends":
        for kind in KINDS:
            clients = state(record["frames"], kind)
            for rid, ends in record["requests"].items():
                ends = dict(ends, text=TOKENIZER.decode(ends["ids"], skip_special_tokens=False))
                has = {name: clients[rid][name] for name in ends}
                if has != ends:
                    return f"{kind.name} {rid}\n{has}\n{ends}"
        return None
    if what == "abort":
        kind, names = record["one"]
        kind, names = EngineCoreRequestType(bytes.fromhex(kind)), MsgpackDecoder().decode([bytes.fromhex(names)])
        return None if (kind, names) == (EngineCoreRequestType.ABORT, [record["rid"]]) else f"{kind} {names}"
    return f"no check of {what}"


def main():
    failed = count = 0
    for line in open(sys.argv[1], encoding="utf-8"):
        record = json.loads(line)
        count += 1
        try:
            why = check(record)
        except Exception as error:
            why = repr(error)
        if why is not None:
            failed += 1
            print(f"{record['what']} {record['name']}: {why}"[:4000])
    print(f"{count} records, {failed} failed")
    sys.exit(failed > 0)


main()
