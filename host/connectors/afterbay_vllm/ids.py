"""Puts the tenant and the lease of a request into the id that vLLM's API server makes for it, and lets a request that Afterbay
migrates keep its rid.

The API server takes the id from the header X-Request-Id, or else from the body's `request_id`. This module runs in the Python API
server. It must not know the engine, nor tokens (`afterbay_connector.http_gate`).
"""
from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, List

from afterbay_connector import http_gate
from afterbay_connector.request_id import IdParts

from .settings import Settings

_OPENAI = "vllm.entrypoints.openai"
_HEADER = "x-request-id"
_MIGRATES = "/v1/completions"
_SEED_MAX = (1 << 63) - 1


def hooks(settings: Settings) -> List[Any]:
    def create(kind: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(original).bind(*args, **kwargs)
        named = arguments.arguments
        request, raw_request = named["request"], named.get("raw_request")
        if http_gate.migrated_rid() is not None:
            is_batch = isinstance(request.prompt, list) and not isinstance(next(iter(request.prompt), None), int)
            http_gate.refuse_several(is_batch or (request.n or 1) != 1)
            renew_noise(args[0], request)
        else:
            named["raw_request"] = put_parts(settings.ids or IdParts(), request, raw_request)
            if raw_request is not None:
                setattr(raw_request.state, http_gate.STREAM_ID, f"{kind}-{request.request_id}")
        return original(*arguments.args, **arguments.kwargs)

    wanted: List[Any] = [(":".join(http_gate.TARGET), "self", http_gate.gate(settings.clients_key, _MIGRATES))]
    if settings.clients_key:
        wanted.append(("vllm.v1.engine.input_processor:InputProcessor.assign_request_id", "request", assign))
    if settings.ids or settings.clients_key:
        chat = f"{_OPENAI}.chat_completion.serving:OpenAIServingChat.create_chat_completion"
        completion = f"{_OPENAI}.completion.serving:OpenAIServingCompletion.create_completion"
        for function, kind in ((chat, "chatcmpl"), (completion, "cmpl")):
            wanted.append((function, "raw_request", functools.partial(create, kind)))
    return wanted


def renew_noise(serving: Any, request: Any) -> None:
    """Change the seed of a migrated request if vLLM draws noise from the beginning again, by which an answer could repeat its beginning.

    vLLM's newer model runner draws by the token's place, so that the same seed goes on exactly.
    """
    config = getattr(getattr(serving, "engine_client", None), "vllm_config", None)
    if request.seed is not None and not getattr(config, "use_v2_model_runner", False):
        request.seed = (request.seed + len(request.prompt)) & _SEED_MAX


def assign(original: Callable[..., Any], request: Any) -> None:
    """Give a request that Afterbay migrates its rid, where vLLM puts random digits behind the id of the client."""
    original(request)
    request.request_id = http_gate.migrated_rid() or request.request_id


def put_parts(parts: IdParts, request: Any, raw_request: Any) -> Any:
    """Return the HTTP request without its id, which is in the body now, behind its parts. vLLM itself calls without an HTTP request."""
    if raw_request is None:
        return None
    request_id = raw_request.headers.get(_HEADER) or request.request_id
    request.request_id = parts.put(request_id, raw_request.headers, request.user)
    # The state is made before the copy, so that both share it.
    raw_request.state  # noqa: B018
    headers = [(name, value) for name, value in raw_request.scope["headers"] if name.lower() != _HEADER.encode()]
    return type(raw_request)({**raw_request.scope, "headers": headers}, raw_request.receive)
