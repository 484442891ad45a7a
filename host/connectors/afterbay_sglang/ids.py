"""Keeps a client's id in the rids that SGLang makes, and puts the tenant and the lease into it.

SGLang gives each sample of a request (n > 1) a random rid. Here the rid is `ID-n` and 12 hexadecimal digits, so that rules, budgets,
aborts and the journal know the request by its id. A request that Afterbay migrates keeps its rid. This module runs in the processes of
the tokenizers. It must not know Afterbay's rules, nor tokens (`afterbay_connector.http_gate`).
"""
from __future__ import annotations

import uuid
from typing import Any, Callable, List, Optional, Tuple

from afterbay_connector import http_gate
from afterbay_connector.request_id import IdParts

from .settings import Settings

_REQUEST = "sglang.srt.managers.io_struct.GenerateReqInput"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_OPENAI = "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase"
# SGLang knows its own health checks by the beginning of their rids.
_HEALTH_CHECK = "HEALTH_CHECK"
_MIGRATES = "/generate"
# The state of an HTTP request has the form of it that has its rids.
_NAMED = "afterbay_named"


def hooks(settings: Settings) -> List[Tuple[str, str, Any]]:
    def generate(original: Callable[..., Any], tokenizer: Any, obj: Any, request: Any = None, *args: Any, **kwargs: Any) -> Any:
        if request is not None:
            name(settings, obj, request)
        return original(tokenizer, obj, request, *args, **kwargs)

    def answer_begins(original: Callable[..., Any], tokenizer: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """SGLang calls this before it answers with a stream, and asks for the stream's first output later."""
        scope = http_gate.scope_now()
        if scope is not None:
            from starlette.requests import Request

            name(settings, obj, Request(scope))
        return original(tokenizer, obj, *args, **kwargs)

    wanted: List[Tuple[str, str, Any]] = [
        (f"{_REQUEST}.regenerate_rid", "AROUND", name_sample),
        (".".join(http_gate.TARGET), "AROUND", http_gate.gate(settings.clients_key, _MIGRATES)),
    ]
    if settings.ids or settings.clients_key:
        wanted.append((f"{_TOKENIZER}.generate_request", "AROUND", generate))
    if settings.clients_key:
        wanted.append((f"{_TOKENIZER}.create_abort_task", "AROUND", answer_begins))
    if settings.ids and settings.ids.tenant and settings.ids.tenant.header is None:
        wanted.append((f"{_OPENAI}.handle_request", "AROUND", keep_user))
    return wanted


def name_sample(original: Callable[..., Any], request: Any) -> Any:
    before = request.rid
    made = original(request)
    if isinstance(before, str) and isinstance(made, str):
        request.rid = f"{before}-n{uuid.uuid4().hex[:12]}"
    return request.rid


def keep_user(original: Callable[..., Any], serving: Any, request: Any, raw_request: Any, *args: Any, **kwargs: Any) -> Any:
    """Keep OpenAI's `user`, which SGLang's own form of the request leaves out."""
    raw_request.state.afterbay_user = getattr(request, "user", None)
    return original(serving, request, raw_request, *args, **kwargs)


def name(settings: Settings, obj: Any, request: Any) -> None:
    """Give an HTTP request's form for the scheduler its rids, once."""
    state = request.state
    if getattr(state, _NAMED, None) is obj:
        return
    setattr(state, _NAMED, obj)
    migrated = getattr(state, http_gate.RID, None)
    if migrated is not None:
        params = obj.sampling_params or {}
        http_gate.refuse_several(_is_batch(obj) or isinstance(params, list) or params.get("n", 1) != 1)
        obj.rid = migrated
    elif not _is_health_check(obj):
        put_parts(settings.ids or IdParts(), obj, request)
        # An embedding has no stream. A batch has one for each prompt, and no id for all.
        if hasattr(obj, "stream") and not _is_batch(obj):
            setattr(state, http_gate.STREAM_ID, obj.rid)


def put_parts(parts: IdParts, obj: Any, request: Any) -> None:
    """Put the parts of an HTTP request into the rids of its form for the scheduler."""
    user = getattr(request.state, "afterbay_user", None)
    named = [parts.put(rid or uuid.uuid4().hex, request.headers, user) for rid in _rids(obj)]
    obj.rid = named if isinstance(obj.rid, list) else named[0]


def _rids(obj: Any) -> List[Optional[str]]:
    return obj.rid if isinstance(obj.rid, list) else [obj.rid]


def _is_health_check(obj: Any) -> bool:
    return any(rid and rid.startswith(_HEALTH_CHECK) for rid in _rids(obj))


def _is_batch(obj: Any) -> bool:
    """Return whether a request has several prompts, before SGLang has counted them."""
    ids, embeds = _first(getattr(obj, "input_ids", None)), _first(getattr(obj, "input_embeds", None))
    return isinstance(obj.rid, list) or isinstance(getattr(obj, "text", None), list) or isinstance(ids, list) or isinstance(_first(embeds), list)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None
