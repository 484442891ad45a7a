"""Sends the record of each request to Afterbay, before the request's first row.

The record is made in the EngineCore's thread of the input sockets, where vLLM prepares a request beside the model's step, and before the
scheduler knows the request. The thread of the output sockets sends it in its place between the frames. Each turn of a session (a request
whose input is streamed) has a record, with the prompt that the model sees: the earlier turns and the new input. This module must not know
frames.
"""
from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from afterbay_connector import request_record
from afterbay_connector.request_id import lease_ms

# Loggers outside of vLLM's namespace have no handler.
logger = logging.getLogger("vllm.afterbay")

NOT_HOOKED = "requests have no records: Afterbay knows neither prompts nor parameters"
TURN_NOT_HOOKED = "only the first turn of a session has a record"
# The attributes of an engine with its open sessions, of an engine and its scheduler with what is the same in all records, and of a
# scheduler with the queue of its engine's outputs.
_SESSIONS, _CONSTANT, _QUEUE = "_afterbay_sessions", "_afterbay_constant", "_afterbay_queue"
# Past this number of sessions whose end was not seen, the oldest is forgotten: its next input gets a record before its turn begins.
SESSIONS_MAX = 65_536
_SAMPLING = (
    ("temperature", "temperature", (1.0,)),
    ("top_p", "top_p", (1.0,)),
    ("top_k", "top_k", (0, -1)),
    ("min_p", "min_p", (0.0,)),
    ("seed", "seed", ()),
    ("max_tokens", "max_tokens", ()),
    ("min_tokens", "min_tokens", (0,)),
    ("stop_token_ids", "stop_token_ids", ([],)),
    ("frequency_penalty", "frequency_penalty", (0.0,)),
    ("presence_penalty", "presence_penalty", (0.0,)),
    ("repetition_penalty", "repetition_penalty", (1.0,)),
    ("n", "n", (1,)),
    ("ignore_eos", "ignore_eos", (False,)),
)
# Parameters that change the tokens, and whose values no record has.
_UNRECORDED: Tuple[Tuple[str, str, Tuple[Any, ...]], ...] = (
    ("allowed_token_ids", "allowed_token_ids", ([],)),
    ("bad_words", "bad_words", ([],)),
    ("extra_args", "extra_args", ({},)),
    ("logit_bias", "logit_bias", ({},)),
    ("logprob_token_ids", "logprob_token_ids", ([],)),
    ("repetition_detection", "repetition_detection", ()),
    ("thinking_token_budget", "thinking_token_budget", (-1,)),
    ("watermarking", "watermarking", (False,)),
)
# The kinds of grammar by their names in vLLM.
_GRAMMARS = {"json": "json_schema", "json_object": "json_object", "regex": "regex", "choice": "choice", "grammar": "ebnf", "structural_tag": "structural_tag"}


class Message(NamedTuple):
    client: int  # the API server that reads the request's output
    content: bytes
    # The record of a turn that begins in the step in which the earlier one ends: its place is behind the next frame, which has that end.
    is_behind_frame: bool = False


def announce(original: Callable[..., Any], engine: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    queue = getattr(engine, "output_queue", None)
    if queue is None or _is_later_input(engine, request):
        return original(engine, request, *args, **kwargs)
    try:
        return original(engine, request, *args, **kwargs)
    finally:
        # The caller hands the request to the scheduler, or a row with an error to the queue. Inputs in a cache are at hand now.
        _put(queue, engine, request)


def announce_turn(original: Callable[..., Any], scheduler: Any, session: Any, *args: Any, **kwargs: Any) -> Any:
    """Announce a further turn of a session. vLLM calls this when the turn before has ended and the input is there."""
    ends_now = session.status.name != "WAITING_FOR_STREAMING_REQ"
    result = original(scheduler, session, *args, **kwargs)
    queue = getattr(scheduler, _QUEUE, None)
    if queue is not None:
        _put(queue, scheduler, session, ends_now)
    return result


def _put(queue: Any, engine: Any, request: Any, is_behind_frame: bool = False) -> None:
    try:
        content = _record(engine, request)
    except Exception as error:  # a request without a record is better than none
        return request_record.warn(logger, repr(error))
    if content:
        queue.put_nowait(Message(request.client_index, content, is_behind_frame))


def send_in_place(engine: Any, sockets: List[Any]) -> None:
    """Let the thread of the output sockets send the messages of the queue. Call it in this thread."""
    queue = getattr(engine, "output_queue", None)
    if queue is None:
        return
    original = queue.get
    # Messages behind the next frame of their client, and those whose frame was sent when the thread asks for the next output.
    waiting: List[Message] = []
    due: List[Message] = []

    def get(*args: Any, **kwargs: Any) -> Any:
        while True:
            for message in due:
                sockets[message.client].send(message.content)
            due.clear()
            output = original(*args, **kwargs)
            if not isinstance(output, Message):
                client = output[0] if isinstance(output, tuple) else None
                due.extend(message for message in waiting if message.client == client)
                waiting[:] = [message for message in waiting if message.client != client]
                return output
            (waiting if output.is_behind_frame else due).append(output)

    queue.get = get


def _is_later_input(engine: Any, request: Any) -> bool:
    """Return whether a request with this id was announced: the inputs of a session have one id, and the last is not `resumable`."""
    sessions = vars(engine).setdefault(_SESSIONS, OrderedDict())
    is_open, goes_on = request.request_id in sessions, getattr(request, "resumable", False)
    if goes_on:
        setattr(engine.scheduler, _QUEUE, engine.output_queue)
        sessions[request.request_id] = None
        if len(sessions) > SESSIONS_MAX:
            sessions.popitem(last=False)
    elif is_open:
        del sessions[request.request_id]
    return is_open


def _record(engine: Any, request: Any) -> Optional[bytes]:
    params, prompt_ids, embeds = getattr(request, "sampling_params", None), request.prompt_token_ids, getattr(request, "prompt_embeds", None)
    arrived = getattr(request, "arrival_time", None)
    headers = getattr(request, "trace_headers", None) or {}
    inputs, resumable = getattr(request, "mm_features", None), getattr(request, "resumable", False)
    return request_record.encode(
        request.request_id,
        prompt_ids,
        len(embeds) if embeds is not None else None,
        arrived_unix_ns=int(arrived * 1e9) if arrived else None,
        **_constant(engine),
        sampling=_sampling(params) if params is not None else None,
        unrecorded=list(request_record.given(params, _UNRECORDED)) or None,
        grammar=_grammar(params),
        logprobs=_logprobs(engine, params),
        lora=getattr(getattr(request, "lora_request", None), "lora_name", None),
        # All turns of a session have one id.
        session=getattr(request, "session_id", None) or (request.request_id if resumable else None),
        resumable=resumable or None,
        lease_ms=lease_ms(request.request_id),
        priority=getattr(request, "priority", None) or None,
        trace={name: headers[name] for name in ("traceparent", "tracestate") if headers.get(name)} or None,
        multimodal=[_input(feature) for feature in inputs] if inputs else None,
    )


def _constant(engine: Any) -> Dict[str, Any]:
    constant = getattr(engine, _CONSTANT, None)
    if constant is None:
        config = engine.vllm_config
        model, parallel = config.model_config, config.parallel_config
        ranks = getattr(parallel, "data_parallel_size", 1) or 1
        constant = {"model": model.served_model_name or model.model, "data_parallel_rank": parallel.data_parallel_rank if ranks > 1 else None}
        setattr(engine, _CONSTANT, constant)
    return constant


def _sampling(params: Any) -> Optional[Dict[str, Any]]:
    found = request_record.given(params, _SAMPLING)
    stop = getattr(params, "stop", None)
    if stop:
        found["stop"] = request_record.texts(stop)
    return found or None


def _grammar(params: Any) -> Optional[Dict[str, Any]]:
    wanted = getattr(params, "structured_outputs", None)
    for name, kind in _GRAMMARS.items() if wanted else ():
        value = getattr(wanted, name, None)
        if value:
            return request_record.grammar(kind, "" if value is True else value, enforced=True)
    return None


def _logprobs(engine: Any, params: Any) -> Optional[Dict[str, Any]]:
    top, of_prompt = getattr(params, "logprobs", None), getattr(params, "prompt_logprobs", None)
    if top is None and of_prompt is None:
        return None
    top = of_prompt if top is None else top
    # -1 means all tokens.
    return {"top": engine.vllm_config.model_config.get_vocab_size() if top < 0 else top, "prompt": of_prompt is not None}


def _input(feature: Any) -> Dict[str, Any]:
    found: Dict[str, Any] = {"modality": feature.modality, "hash": getattr(feature, "mm_hash", None) or feature.identifier}
    size = sum(request_record.input_bytes(field.data) for field in feature.data.values()) if feature.data else 0
    if size:
        found["bytes"] = size
    found["tokens"] = feature.mm_position.length
    return found
