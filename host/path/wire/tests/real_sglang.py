"""Frames by the real SGLang 0.5.23, and frames for it: its own encoder, its own decoder, its own reader.

usage: real_sglang.py make SEEDS > FRAMES     sequences of batches with logprobs, sampling masks, …, both encodings
       real_sglang.py check RECORDS           exits 1 if a record fails, and says which

Both files have one JSON a line. FRAMES: {"name", "wire": "msgpack"|"pickle", "frames": [HEX..]}. RECORDS, by "what":
  equal     {"name", "wire", "old": bool, "one": HEX, "other": HEX}       both decode, to equal fields
  readable  {"name", "wire", "one": HEX}                                  decodes, and its rows are what the readers go by
  abort     {"name", "wire", "one": HEX, "rid"}                           is the AbortReq of that rid alone, all else as by default
  reason    {"name", "wire", "one": HEX, "row", "is": [message, status, type]}  that row's finish reason is that FINISH_ABORT's
  state     {"name", "wire", "single": [HEX..], "joined": [HEX..]}        a TokenizerManager ends in the same state
  textless  {"name", "wire", "one": HEX, "other": HEX}                    a DetokenizerManager makes `other` of `one`, but for the text
  past      {"name", "wire", "single": [HEX..], "past": [HEX..]}          a TokenizerManager has the same of `past`, without text, as of
                                                                          what a DetokenizerManager makes of `single`
"""
import asyncio
import io as stdio
import json
import os
import pickle
import random
import sys
import tempfile
from array import array

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", SGLANG_PLUGINS="none", OMP_NUM_THREADS="1")

import msgspec
import numpy as np
import torch
from sglang.srt.managers import io_struct as io

BATCHES = (io.BatchTokenIDOutput, io.BatchStrOutput, io.BatchEmbeddingOutput)


# ---- make

def make(seed, wire):
    """The batches of some requests: each has a row in some steps, with one or more tokens."""
    from sglang.srt.observability.req_time_stats import SchedulerReqTimeStats
    from sglang.srt.sampling.sampling_mask import SamplingMaskChunk
    from sglang.srt.utils.weight_versions import WeightVersionSpan

    r = random.Random(seed)
    wrap = (lambda obj: io.PickleWrapper(pickle.dumps(obj))) if wire == "msgpack" else (lambda obj: obj)
    kinds = ("plain", "logprob", "flat", "selected", "support")
    requests = [dict(rid=f"{kind}-{seed}-{n}", kind=kind, done=0, total=r.randint(1, 9)) for n, kind in enumerate(r.choices(kinds, k=r.randint(1, 6)))]
    named = r.random() < 0.5
    frames = []
    while any(q["done"] < q["total"] for q in requests):
        rows = [q for q in requests if q["done"] < q["total"] and r.random() < 0.7]
        if not rows:
            continue
        n = len(rows)
        columns = {name: None for name in io.BatchTokenIDOutput.__struct_fields__}
        for name in columns:
            if name.startswith("spec_"):
                columns[name] = []
            elif name in ("reasoning_tokens", "cached_tokens", "retraction_counts", "image_tokens", "audio_tokens", "video_tokens"):
                columns[name] = [0] * n
            elif name in ("http_worker_ipcs", "dp_ranks", "cached_tokens_details"):
                columns[name] = [None] * n
        per_row = {name: [] for name in (
            "finished_reasons", "decode_ids", "output_ids", "completion_tokens", "weight_versions",
            "output_token_logprobs_val", "output_token_logprobs_idx", "output_top_logprobs_val", "output_top_logprobs_idx",
            "output_token_ids_logprobs_val", "output_token_ids_logprobs_idx", "input_token_logprobs_val", "input_token_logprobs_idx",
            "input_top_logprobs_val", "input_top_logprobs_idx", "input_token_ids_logprobs_val", "input_token_ids_logprobs_idx",
            "input_top_logprobs_val_flat", "input_top_logprobs_idx_flat", "input_top_logprobs_flat_null_prefix",
            "output_token_sampling_mask")}
        info = []
        for q in rows:
            new = array("q", [r.randrange(2, 1 << 33) for _ in range(min(r.randint(0, 3), q["total"] - q["done"]) or 1)])
            first, begun = q["done"] == 0, q["done"]
            q["done"] += len(new)
            tokens = range(begun, q["done"])
            last = q["done"] == q["total"]
            add = lambda **cells: [per_row[name].append(cell) for name, cell in cells.items()]
            matched = new[-1] if q["kind"] == "plain" else "x"
            add(finished_reasons={"type": "stop", "matched": matched} if last else None, output_ids=new, completion_tokens=q["done"],
                decode_ids=array("q", [5, 6, 7]) + new if first else new,
                weight_versions=[WeightVersionSpan(version="v", start=0, end=q["done"])] if last else None)
            wants = q["kind"] in ("logprob", "flat")
            out = lambda make: [make(t) for t in tokens] if wants else []
            add(output_token_logprobs_val=out(lambda t: -t / 8), output_token_logprobs_idx=list(new) if wants else [],
                output_top_logprobs_val=out(lambda t: [-0.5, -t / 4] if t % 3 else None), output_top_logprobs_idx=out(lambda t: [t, 9] if t % 3 else None),
                output_token_ids_logprobs_val=out(lambda t: [-t / 2]), output_token_ids_logprobs_idx=out(lambda t: [3]))
            once = lambda value, kind="logprob": value if first and q["kind"] == kind else []
            both = lambda value: value if first and wants else []
            flat = lambda value: value if first and q["kind"] == "flat" else None
            add(input_token_logprobs_val=both([None, -0.5, -0.25, -0.75]), input_token_logprobs_idx=both([5, 6, 7, 8]),
                input_top_logprobs_val=once([None, [-1.0, -2.0], [-1.0, -2.0], [-1.5, -2.0]]), input_top_logprobs_idx=once([None, [1, 2], [1, 2], [1, 2]]),
                input_token_ids_logprobs_val=both([None, [-1.0], [-1.0], [-1.0]]), input_token_ids_logprobs_idx=both([None, [3], [3], [3]]),
                input_top_logprobs_val_flat=flat(np.array([[-1, -2], [-3, -4], [-5, -6]], dtype=np.float32)),
                input_top_logprobs_idx_flat=flat(np.array([[1, 2], [3, 4], [5, 6]], dtype=np.int32)),
                input_top_logprobs_flat_null_prefix=flat(1))
            support = [[r.randrange(99) for _ in range(r.randint(1, 4))] for _ in tokens]
            flattened = [token for tokens in support for token in tokens]
            count = len(flattened) if q["kind"] == "support" else len(new)
            add(output_token_sampling_mask=SamplingMaskChunk(
                lengths=np.array([len(tokens) for tokens in support], dtype=np.int32), token_ids=np.array(flattened, dtype=np.int32),
                logprobs=np.array([r.random() for _ in range(count)], dtype=np.float32)) if q["kind"] in ("selected", "support") else None)
            info.append([f"{q['rid']}@{t}" for t in tokens])
        kinds_here = {q["kind"] for q in rows}
        for name, cells in per_row.items():
            here = {"output_token_sampling_mask": kinds_here & {"selected", "support"}, "weight_versions": any(per_row["weight_versions"]),
                    **{name: "flat" in kinds_here for name in per_row if "_flat" in name}}.get(name, "logprobs" not in name or kinds_here & {"logprob", "flat"})
            columns[name] = cells if here else None
        columns.update(
            rids=[q["rid"] for q in rows], decoded_texts=[""] * n, read_offsets=[3] * n, skip_special_tokens=[True] * n,
            spaces_between_special_tokens=[True] * n, no_stop_trim=[False] * n, prompt_tokens=[4] * n,
            time_stats=wrap([SchedulerReqTimeStats() for _ in rows]), customized_info=wrap({"k": info}) if named else None)
        batch = io.BatchTokenIDOutput(**columns)
        frames.append(io.msgpack_encode(batch) if wire == "msgpack" else pickle.dumps(batch, pickle.HIGHEST_PROTOCOL))
    return {"name": f"seed {seed}", "wire": wire, "frames": [frame.hex() for frame in frames]}


# ---- check

class Recorded:
    """An object by what its pickle says: of a class that 0.5.23 does not have, or one that changes when it is loaded."""

    path = ""

    def __new__(cls, *args):
        self = object.__new__(cls)
        self.made, self.state = args, None
        return self

    def __init__(self, *args):
        pass

    def __setstate__(self, state):
        self.state = state


class Recorder(pickle.Unpickler):
    def find_class(self, module, name):
        if module.split(".")[0] in ("array", "numpy", "torch", "collections") or name == "_chunk_from_buffers":
            return super().find_class(module, name)
        return type(name, (Recorded,), {"path": f"{module}.{name}"})


def recorded(data):
    return plain(Recorder(stdio.BytesIO(data)).load())


def plain(obj):
    """Something that compares by value."""
    if isinstance(obj, type):
        return ("class", getattr(obj, "path", obj.__name__))
    if isinstance(obj, Recorded):
        return (obj.path, plain(obj.made), plain(obj.state))
    if isinstance(obj, io.PickleWrapper):
        return ("PickleWrapper", recorded(obj.data))
    if isinstance(obj, msgspec.Struct):
        return (type(obj).__name__, [(name, plain(getattr(obj, name))) for name in obj.__struct_fields__])
    if isinstance(obj, array):
        return ("array", obj.typecode, obj.tolist())
    if isinstance(obj, torch.Tensor):
        return ("tensor", str(obj.dtype), tuple(obj.shape), obj.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    if isinstance(obj, np.ndarray):
        return ("ndarray", obj.dtype.str, obj.shape, obj.tobytes())
    if isinstance(obj, dict):
        return {str(key): plain(value) for key, value in obj.items()}
    if isinstance(obj, (list, tuple)):
        return [plain(item) for item in obj]
    return (type(obj).__name__, obj)


def decode(wire, data):
    batch = io.msgpack_decode(data) if wire == "msgpack" else pickle.loads(data)
    assert isinstance(batch, BATCHES), type(batch)
    return batch


def fields(wire, old, data):
    """The fields; `old` frames are of a version whose classes are not here."""
    if wire == "pickle":
        if not old:
            decode(wire, data)
        return recorded(data)
    if not old:
        return plain(decode(wire, data))
    import msgpack

    values = msgpack.unpackb(data, strict_map_key=False)
    wrapped = lambda value: isinstance(value, list) and len(value) == 2 and value[0] == "PickleWrapper"
    return [recorded(value[1]) if wrapped(value) else plain(value) for value in values]


def check_readable(wire, batch):
    n = len(batch.rids)
    for name in batch.__struct_fields__:
        column = getattr(batch, name)
        assert not isinstance(column, list) or len(column) in (0, n), f"{name} has {len(column)} cells, {n} rows"
    if isinstance(batch, io.BatchEmbeddingOutput):
        return
    io._USE_PICKLE_IPC = wire == "pickle"
    assert batch.time_stats is None or len(io.unwrap_from_pickle(batch.time_stats)) == n
    for row in range(n):
        ids = batch.output_ids[row] if batch.output_ids is not None else None
        assert ids is None or isinstance(ids, array) and ids.typecode == "q"
        for name in ("output_token_logprobs_val", "output_token_logprobs_idx", "output_top_logprobs_val"):
            column = getattr(batch, name)
            assert column is None or len(column[row]) in (0, len(ids)), f"{name}: {column[row]} for {ids}"
        mask = batch.output_token_sampling_mask
        if mask is not None and mask[row] is not None:
            support = len(mask[row].logprobs) != len(mask[row].lengths)
            masks, logprobs = mask[row].to_lists(support)
            assert len(masks) == len(logprobs) == len(ids)


class Detokenizer:
    """A real DetokenizerManager, but for its sockets, with a vocabulary of a hundred words."""

    def __init__(self):
        from sglang.srt.managers import detokenizer_manager as of
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        words = models.WordLevel({f"w{at}": at for at in range(100)}, unk_token="w0")
        self.manager = manager = of.DetokenizerManager.__new__(of.DetokenizerManager)
        manager.tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words))
        manager.vocab_size = len(manager.tokenizer)
        manager.decode_status = of.LimitedCapacityDict(of.DETOKENIZER_MAX_STATES)
        manager.disable_tokenizer_batch_decode = manager.is_tool_call_parser_gpt_oss = False
        manager.tool_close_token_ids = set()

    def detokenized(self, wire, frame):
        """The frame that it sends."""
        io._USE_PICKLE_IPC = wire == "pickle"
        output = self.manager.handle_batch_token_id_out(decode(wire, frame))
        return io.msgpack_encode(output) if wire == "msgpack" else pickle.dumps(output, pickle.HIGHEST_PROTOCOL)


def columns(wire, data):
    """The fields by name."""
    assert isinstance(decode(wire, data), io.BatchStrOutput)
    if wire == "msgpack":
        return dict(fields(wire, False, data)[1])
    _, (_, named), _ = recorded(data)
    return named


def check_textless(wire, detokenized, ours):
    theirs, ours = columns(wire, detokenized), columns(wire, ours)
    assert ours.keys() == theirs.keys()
    assert ours.pop("output_strs") == plain([""] * len(theirs.pop("output_strs")))
    if theirs["output_ids"] == plain(None):
        # No reader takes that; ours are those that the detokenizer was given.
        assert len(ours.pop("output_ids")) == len(theirs["rids"])
        del theirs["output_ids"]
    for name in theirs:
        one, other = without_clock(ours[name]), without_clock(theirs[name])
        assert one == other, f"{name} {one} is not {other}"


def without_clock(column):
    """Who reads a time from another process turns it to its own clock, and so does the next: told by whom does not matter."""
    if isinstance(column, dict) and "diff_realtime_monotonic" in column:
        return {key: value for key, value in column.items() if not key.endswith("time") and key != "diff_realtime_monotonic"}
    if isinstance(column, (list, tuple)):
        return [without_clock(item) for item in column]
    return column


class Reader:
    """A real TokenizerManager."""

    def __init__(self):
        import zmq
        import zmq.asyncio
        from sglang.srt.runtime_context import publish
        from sglang.srt.server_args import PortArgs, ServerArgs

        model, sockets = tempfile.mkdtemp(), tempfile.mkdtemp()
        json.dump(dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                       num_attention_heads=4, num_key_value_heads=4, head_dim=16, vocab_size=2048, max_position_embeddings=8192,
                       torch_dtype="bfloat16", bos_token_id=0, eos_token_id=1), open(os.path.join(model, "config.json"), "w"))
        args = ServerArgs(model_path=model, device="cpu", load_format="dummy", skip_tokenizer_init=True, log_level="warning",
                          attention_backend="torch_native", tp_size=1, random_seed=1)
        publish(args, role="tokenizer")
        from sglang.srt.managers.tokenizer_manager import ServerStatus, TokenizerManager

        at = lambda name: f"ipc://{sockets}/{name}"
        ports = PortArgs(tokenizer_ipc_name=at("tok"), scheduler_input_ipc_name=at("sched"), detokenizer_ipc_name=at("detok"), nccl_port=29999,
                         rpc_ipc_name=at("rpc"), metrics_ipc_name=at("metrics"), tokenizer_worker_ipc_name=None,
                         decoupled_spec_ipc_config=None, instance_id="afterbaywire")
        self.manager = TokenizerManager(args, ports)
        self.manager.server_status = ServerStatus.Up
        self.manager.max_req_input_len = 8000
        self.requests = zmq.asyncio.Context().socket(zmq.PULL)
        self.requests.connect(at("sched"))

    async def state(self, wire, frames):
        """What each request's client has at the end."""
        io._USE_PICKLE_IPC = wire == "pickle"
        batches = [decode(wire, data) for data in frames]
        ends = {}

        async def client(rid):
            kind = rid.split("-")[0]
            wants = dict(return_logprob=True, logprob_start_len=0, top_logprobs_num=2, token_ids_logprob=[3]) if kind in ("logprob", "flat") else {}
            if kind == "flat":
                wants["return_flat_raw_top_logprobs"] = True
            if kind in ("selected", "support"):
                wants.update(return_sampling_mask=True, sampling_logprobs_mode=kind)
            request = io.GenerateReqInput(rid=rid, input_ids=[5, 6, 7, 8], sampling_params=dict(max_new_tokens=500, ignore_eos=True), stream=kind != "flat", **wants)
            async for out in self.manager.generate_request(request):
                ends[rid] = out

        rids = {rid for batch in batches for rid in batch.rids}
        clients = [asyncio.create_task(client(rid)) for rid in rids]
        while not all(rid in self.manager.rid_to_state for rid in rids):
            await asyncio.sleep(0)
            for task in clients:
                if task.done():
                    task.result()
        for batch in batches:
            await self.manager._handle_batch_output(batch)
            for _ in range(3):
                await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*clients), 20)
        clock = ("e2e_latency", "response_sent_to_client_ts", "received_ts", "received_sent_to_client_ts")
        self.texts = [out.get("text") for out in ends.values()]
        return {rid: (list(out["output_ids"]), {key: plain(value) for key, value in out["meta_info"].items() if key not in clock}) for rid, out in ends.items()}


async def check(path):
    records = failed = 0
    reader = None
    for line in open(path):
        record = json.loads(line)
        records += 1
        wire, frame = record["wire"], lambda key: bytes.fromhex(record[key])
        try:
            if record["what"] == "equal":
                one, other = (fields(wire, record["old"], frame(key)) for key in ("one", "other"))
                assert one == other, f"{one} is not {other}"
            elif record["what"] == "readable":
                check_readable(wire, decode(wire, frame("one")))
            elif record["what"] == "abort":
                one = io.msgpack_decode(frame("one")) if wire == "msgpack" else pickle.loads(frame("one"))
                assert one == io.AbortReq(rid="\0afterbay", http_worker_ipc=record["rid"]) and one.abort_all is False, f"{one}"
            elif record["what"] == "reason":
                from sglang.srt.managers.schedule_batch import FINISH_ABORT

                reason, real = decode(wire, frame("one")).finished_reasons[record["row"]], FINISH_ABORT(*record["is"]).to_json()
                assert reason == real and list(reason) == list(real), f"{reason} is not {real}"
            elif record["what"] == "textless":
                check_textless(wire, Detokenizer().detokenized(wire, frame("one")), frame("other"))
            elif record["what"] == "past":
                reader, detokenizer = reader or Reader(), Detokenizer()
                through = await reader.state(wire, [detokenizer.detokenized(wire, bytes.fromhex(frame)) for frame in record["single"]])
                assert any(reader.texts), "the detokenizer made no text"
                past = await reader.state(wire, [bytes.fromhex(frame) for frame in record["past"]])
                assert not any(reader.texts), reader.texts
                assert through == past, f"{through} is not {past}"
            else:
                reader = reader or Reader()
                single, joined = [await reader.state(wire, [bytes.fromhex(frame) for frame in record[key]]) for key in ("single", "joined")]
                for rid in single:
                    assert single[rid] == joined[rid], f"{rid}: {single[rid]} is not {joined[rid]}"
        except Exception as error:
            failed += 1
            print(f"{record['name']} ({wire}): {type(error).__name__}: {error}"[:3000])
    print(f"{records} records, {failed} failed", flush=True)
    os._exit(1 if failed or not records else 0)


if sys.argv[1] == "make":
    for seed in range(int(sys.argv[2])):
        for wire in ("msgpack", "pickle"):
            print(json.dumps(make(seed, wire)))
else:
    asyncio.run(check(sys.argv[2]))
