"""Keeps a client's id in the rids that SGLang makes, and puts the tenant and the lease into it.

SGLang gives each sample of a request (n > 1) a random rid. Here the rid is `ID-n` and 12 hexadecimal digits, so that rules, budgets,
aborts and the journal know the request by its id. This module runs in the processes of the tokenizers. It must not know Afterbay's rules.
"""
from __future__ import annotations

import uuid
from typing import Any, Callable, List, Tuple

from afterbay_connector.request_id import IdParts

from .settings import Settings

_REQUEST = "sglang.srt.managers.io_struct.GenerateReqInput"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_OPENAI = "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase"
# SGLang knows its own health checks by the beginning of their rids.
_HEALTH_CHECK = "HEALTH_CHECK"


def hooks(settings: Settings) -> List[Tuple[str, str, Any]]:
    wanted: List[Tuple[str, str, Any]] = [(f"{_REQUEST}.regenerate_rid", "AROUND", name_sample)]
    parts = settings.ids
    if parts is None:
        return wanted

    def generate(original: Callable[..., Any], tokenizer: Any, obj: Any, request: Any = None, *args: Any, **kwargs: Any) -> Any:
        if request is not None:
            put_parts(parts, obj, request)
        return original(tokenizer, obj, request, *args, **kwargs)

    wanted.append((f"{_TOKENIZER}.generate_request", "AROUND", generate))
    if parts.tenant and parts.tenant.header is None:
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


def put_parts(parts: IdParts, obj: Any, request: Any) -> None:
    """Put the parts of an HTTP request into the rids of its form for the scheduler."""
    rids = obj.rid if isinstance(obj.rid, list) else [obj.rid]
    if any(rid and rid.startswith(_HEALTH_CHECK) for rid in rids):
        return
    user = getattr(request.state, "afterbay_user", None)
    named = [parts.put(rid or uuid.uuid4().hex, request.headers, user) for rid in rids]
    obj.rid = named if isinstance(obj.rid, list) else named[0]
