"""Sends the record of each request to Afterbay, before the request's first row, and the end of a request without a last row.

This module runs in the scheduler's process, and finds the fields of a record in this SGLang's messages. A turn of a session has the prompt
that the model sees: the earlier turns and the new ids. It must not know sockets (`ingress`).
"""
from __future__ import annotations

import functools
import logging
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from afterbay_connector import request_record
from afterbay_connector.request_id import lease_ms

from .ingress import output_sender
from .rendezvous import Facts

logger = logging.getLogger("afterbay.sglang")

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_SESSION = "sglang.srt.session.session_controller.Session.create_req"
NOT_HOOKED = "requests have no records: Afterbay knows neither prompts nor parameters"
TURN_NOT_HOOKED = "the record of a turn of a session has the new ids only"
# The attribute of a scheduler with what is the same in all its records.
_CONSTANT = "_afterbay_constant"
_SAMPLING = (
    ("temperature", "temperature", (1.0,)),
    ("top_p", "top_p", (1.0,)),
    ("top_k", "top_k", (-1, 1 << 30)),
    ("min_p", "min_p", (0.0,)),
    ("seed", "sampling_seed", ()),
    ("max_tokens", "max_new_tokens", ()),
    ("min_tokens", "min_new_tokens", (0,)),
    ("frequency_penalty", "frequency_penalty", (0.0,)),
    ("presence_penalty", "presence_penalty", (0.0,)),
    ("repetition_penalty", "repetition_penalty", (1.0,)),
    ("n", "n", (1,)),
    ("ignore_eos", "ignore_eos", (False,)),
)
# Parameters that change the tokens, and whose values no record has.
_UNRECORDED: Tuple[Tuple[str, str, Tuple[Any, ...]], ...] = (
    ("beam_width", "beam_width", (1,)),
    ("logit_bias", "logit_bias", ({},)),
    ("stop_regex", "stop_regex_strs", ([], "")),
    ("watermark", "watermark", ()),
)
_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")

# Sends the record of the turn that the scheduler handles now, with the turn's prompt.
_turn: Optional[Callable[[Any], None]] = None


def hooks() -> List[Tuple[str, str, Any]]:
    return [(f"{_SCHEDULER}.{name}", "AROUND", announce) for name in ("handle_generate_request", "handle_embedding_request")]


def turn_hooks() -> List[Tuple[str, str, Any]]:
    return [(_SESSION, "AFTER", turn_made)]


def announce(original: Callable[..., Any], scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    global _turn
    socket = output_sender(scheduler).socket
    if socket is None:
        return original(scheduler, request, *args, **kwargs)
    send = functools.partial(_send, socket, scheduler, request)
    if _session(request) is None:
        send(request.input_ids)
        return original(scheduler, request, *args, **kwargs)
    _turn = send
    try:
        return original(scheduler, request, *args, **kwargs)
    finally:
        # The session is unknown, or its method is not hooked. Rows leave later, in the scheduler's step.
        if _turn:
            _turn(request.input_ids)
            _turn = None


def turn_made(made: Any, *_args: Any, **_kwargs: Any) -> None:
    global _turn
    if _turn:
        _turn(made.origin_input_ids_unpadded)
        _turn = None


def _send(socket: Any, scheduler: Any, request: Any, prompt_ids: Optional[Sequence[int]]) -> None:
    try:
        message = _record(scheduler, request, prompt_ids)
    except Exception as error:  # a request without a record is better than none
        return request_record.warn(logger, repr(error))
    if message:
        socket.send(message)


def _record(scheduler: Any, request: Any, prompt_ids: Optional[Sequence[int]]) -> Optional[bytes]:
    embeds = getattr(request, "input_embeds", None)
    generates = hasattr(request, "return_logprob")
    room = getattr(request, "bootstrap_room", None)
    stats, inputs = getattr(request, "time_stats", None), getattr(request, "mm_inputs", None)
    return request_record.encode(
        request.rid,
        None if embeds else prompt_ids,
        len(embeds) if embeds else None,
        arrived_unix_ns=time.time_ns(),
        **_constant(scheduler),
        sampling=_sampling(request.sampling_params) if generates else None,
        unrecorded=_unrecorded(request) if generates else None,
        grammar=_grammar(scheduler, request.sampling_params) if generates else None,
        logprobs=_logprobs(request, prompt_ids or ()) if generates and request.return_logprob else None,
        lora=lora(scheduler, request),
        session=_session(request) or getattr(request, "session_id", None),
        lease_ms=lease_ms(request.rid),
        priority=getattr(request, "priority", None),
        stream=getattr(request, "stream", None) if generates else None,
        front_end=getattr(request, "http_worker_ipc", None),
        routing_key=getattr(request, "routing_key", None),
        bootstrap=None if room is None else request_record.given(request, [(name, f"bootstrap_{name}", ()) for name in ("host", "port", "room")]),
        trace=_trace(stats) if stats is not None else None,
        multimodal=_multimodal(inputs) if inputs is not None else None,
    )


def _constant(scheduler: Any) -> Dict[str, Any]:
    constant = getattr(scheduler, _CONSTANT, None)
    if constant is None:
        facts = Facts.of(scheduler)
        rank = facts.dp_rank if facts.dp_size > 1 else None
        constant = {"model": facts.get("served_model_name") or facts.get("model_path"), "data_parallel_rank": rank}
        setattr(scheduler, _CONSTANT, constant)
        _send_ends(scheduler)
    return constant


def _send_ends(scheduler: Any) -> None:
    """Tell Afterbay of the requests that the scheduler ends in its queue: their AbortReq goes to the tokenizer, past Afterbay."""
    sender = getattr(getattr(scheduler, "ipc_channels", scheduler), "send_to_tokenizer", None)
    original = getattr(sender, "send_output", None)
    if original is None:
        return

    def send_output(output: Any, *args: Any, **kwargs: Any) -> Any:
        if type(output).__name__ == "AbortReq" and output.rid:
            output_sender(scheduler).socket.send(request_record.end(output.rid))
        return original(output, *args, **kwargs)

    sender.send_output = send_output


def _session(request: Any) -> Optional[str]:
    return getattr(getattr(request, "session_params", None), "id", None)


def _sampling(params: Any) -> Optional[Dict[str, Any]]:
    found = request_record.given(params, _SAMPLING)
    stop, stop_ids = getattr(params, "stop_strs", None), getattr(params, "stop_token_ids", None)
    if stop:
        found["stop"] = request_record.texts(stop)
    if stop_ids:
        found["stop_token_ids"] = sorted(stop_ids)
    return found or None


def _unrecorded(request: Any) -> Optional[List[str]]:
    params = request.sampling_params
    found = list(request_record.given(params, _UNRECORDED))
    # SGLang's chat server passes facts about the grammar in parameters of its own.
    if any(not str(name).startswith("__sglang_") for name in getattr(params, "custom_params", None) or ()):
        found.append("custom_params")
    return found + [name for name in ("custom_logit_processor", "positional_embed_overrides") if getattr(request, name, None)] or None


def _grammar(scheduler: Any, params: Any) -> Optional[Dict[str, Any]]:
    for kind in _GRAMMARS:
        value = getattr(params, kind, None)
        if value:
            # On the scheduler itself before SGLang 0.5.8.
            backend = getattr(getattr(scheduler, "grammar_manager", scheduler), "grammar_backend", None)
            return request_record.grammar(kind, value, backend is not None)
    return None


def _logprobs(request: Any, prompt_ids: Sequence[int]) -> Dict[str, Any]:
    start = getattr(request, "logprob_start_len", -1)
    return {"top": request.top_logprobs_num or 0, "prompt": 0 <= start < len(prompt_ids)}


def lora(scheduler: Any, request: Any) -> Optional[str]:
    """Return the name of the adapter: SGLang sends it to the scheduler since 0.5.23, and the adapter's id before."""
    lora_id = getattr(request, "lora_id", None)
    if not lora_id or getattr(request, "lora_name", None):
        return getattr(request, "lora_name", None)
    worker = getattr(scheduler, "tp_worker", None)
    runner = getattr(getattr(worker, "worker", worker), "model_runner", None)
    loaded = getattr(getattr(runner, "lora_manager", None), "lora_refs", {})
    return getattr(loaded.get(lora_id), "lora_name", None) or lora_id


def _trace(stats: Any) -> Optional[Dict[str, str]]:
    """Return the headers of the request's span. SGLang keeps them only while it traces (--enable-trace)."""
    context = getattr(stats, "trace_ctx", None)
    if not getattr(context, "tracing_enable", False):
        return None
    headers = getattr(context, "_root_span_carrier", None)
    if headers is None:
        from opentelemetry import propagate

        headers = {}
        propagate.inject(headers, context.root_span_context)
    return {name: headers[name] for name in ("traceparent", "tracestate") if headers.get(name)} or None


def _multimodal(inputs: Any) -> Optional[List[Dict[str, Any]]]:
    # A map in older versions.
    items = inputs.get("mm_items", ()) if isinstance(inputs, dict) else getattr(inputs, "mm_items", ())
    return [_input(item) for item in items] or None


def _input(item: Any) -> Dict[str, Any]:
    found: Dict[str, Any] = {"modality": item.modality.name.lower()}
    known, places = getattr(item, "hash", None), getattr(item, "offsets", None)
    if known is not None:
        found["hash"] = f"{known:016x}"
    size = request_record.input_bytes([getattr(item, name, None) for name in ("feature", "precomputed_embeddings")])
    if size:
        found["bytes"] = size
    if places:
        found["tokens"] = sum(last - first + 1 for first, last in places)
    return found
