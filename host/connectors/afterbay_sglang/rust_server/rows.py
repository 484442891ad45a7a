"""The batches of Rust mode as SGLang's other readers get them, and back.

This module fills the columns that the scheduler leaves empty for its Rust server, and makes rows of what has none: an abort, a health
acknowledgement. It must not know sockets.
"""
from __future__ import annotations

import pickle
import types
from array import array
from typing import Any, List, Tuple

from ..wire import ipc_format


def complete(batch: Any, requests: List[Any]) -> None:
    """Fill the columns that Rust mode leaves empty. Remove those that the Rust server does not read and whose encoding is slow."""
    batch.time_stats = batch.customized_info = None
    rows = len(batch.rids)
    if rows == 0:
        return
    batch.completion_tokens = [request.send_token_offset for request in requests]
    batch.decode_ids = batch.output_ids
    batch.http_worker_ipcs = batch.cached_tokens_details = [None] * rows
    batch.decoded_texts = [""] * rows
    batch.read_offsets = [0] * rows
    batch.skip_special_tokens = batch.spaces_between_special_tokens = batch.no_stop_trim = [True] * rows


def outgoing(batch: Any) -> Any:
    """Return the batch in the form that is sent. In a pickle, ids are lists of ints: half the time of arrays."""
    if ipc_format() == "pickle" and batch.output_ids:
        batch.decode_ids = batch.output_ids = list(map(array.tolist, batch.output_ids))
    return batch


def decoded(data: bytes) -> Any:
    """Decode a message as SGLang decodes those of its other sockets."""
    from sglang.srt.managers import io_struct

    return pickle.loads(data) if ipc_format() == "pickle" else io_struct.msgpack_decode(data)


def returned(data: bytes) -> Any:
    """Decode a batch that Afterbay sent. `push_generation` takes only arrays of ids."""
    batch = decoded(data)
    batch.output_ids = [ids if type(ids) is array else array("q", ids) for ids in batch.output_ids or []]
    return batch


def empty() -> Any:
    """Return a batch without rows. Afterbay keeps its place."""
    from sglang.srt.managers.io_struct import BatchTokenIDOutput

    lists = "rids http_worker_ipcs finished_reasons decoded_texts decode_ids read_offsets output_ids skip_special_tokens "
    lists += "spaces_between_special_tokens no_stop_trim prompt_tokens reasoning_tokens completion_tokens cached_tokens"
    columns = dict.fromkeys(BatchTokenIDOutput.__struct_fields__)
    return BatchTokenIDOutput(**{**columns, **{name: [] for name in lists.split()}})


def of_abort(abort: Any, request: Any) -> Any:
    """Return a batch with one row, the end of a request outside the output stream, so that it does not pass earlier rows."""
    batch = empty()
    batch.rids = [abort.rid]
    batch.finished_reasons = [abort.finished_reason or {"type": "abort", "message": abort.abort_message or "Abort in waiting queue"}]
    batch.output_ids = [array("q")]
    batch.prompt_tokens = [len(request.origin_input_ids)]
    batch.cached_tokens = [request.cached_tokens]
    batch.reasoning_tokens = [request.reasoning_tokens]
    batch.weight_versions = None if abort.weight_versions is None else [abort.weight_versions]
    complete(batch, [types.SimpleNamespace(send_token_offset=request.send_token_offset)])
    return batch


def to_abort(batch: Any) -> Tuple[Any, Any]:
    """Return the arguments of `push_abort` for a batch with one row: the abort, and the counts of its request."""
    from sglang.srt.managers.io_struct import AbortReq

    versions = batch.weight_versions[0] if batch.weight_versions else None
    abort = AbortReq(rid=batch.rids[0], finished_reason=batch.finished_reasons[0], weight_versions=versions)
    counts = types.SimpleNamespace(
        origin_input_ids=range(batch.prompt_tokens[0]), cached_tokens=batch.cached_tokens[0], reasoning_tokens=batch.reasoning_tokens[0]
    )
    return abort, counts
