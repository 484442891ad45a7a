"""Reads trajectories with Polars and makes a batch of tensors of the turns that have a logprob for each id."""

import json
import sys

import numpy
import polars

sessions = polars.read_parquet(sys.argv[1])
turns = sessions.explode("turns", empty_as_null=True).unnest("turns")
known = turns.filter(polars.col("logprobs").is_not_null())
width = (known["prompt_ids"].list.len() + known["ids"].list.len()).max()
shape = (known.height, width)
ids, is_sampled = numpy.zeros(shape, numpy.int64), numpy.zeros(shape, numpy.int8)
logprobs = numpy.zeros(shape, numpy.float32)
for at, turn in enumerate(known.iter_rows(named=True)):
    start, end = len(turn["prompt_ids"]), len(turn["prompt_ids"]) + len(turn["ids"])
    ids[at, :end] = turn["prompt_ids"] + turn["ids"]
    is_sampled[at, start:end] = 1
    logprobs[at, start:end] = turn["logprobs"]
first = known.row(0, named=True)
ends = numpy.cumsum(first["mask_lengths"])[:-1]
candidates = numpy.split(numpy.array(first["mask_token_ids"]), ends)
experts = first["routed_experts"][0]
print(json.dumps({
    "sessions": sessions["session"].to_list(),
    "prefix": turns.select("prefix_is_kept", "prefix_equal").rows(),
    "ids": ids.tolist(),
    "is_sampled": is_sampled.tolist(),
    "logprobs": logprobs.tolist(),
    "weights": [list(span.values()) for spans in known["weight_versions"] for span in spans],
    "candidates": [ids.tolist() for ids in candidates],
    "experts": numpy.array(experts["experts"]).reshape(experts["shape"]).tolist(),
}))
