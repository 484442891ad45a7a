"""Puts the tenant and the lease of a request into the id that vLLM's API server makes for it.

The API server takes the id from the header X-Request-Id, or else from the body's `request_id`. This module runs in the Python API
server. It must not know the engine.
"""
from __future__ import annotations

import inspect
from typing import Any, Callable, List

from afterbay_connector.request_id import IdParts

_OPENAI = "vllm.entrypoints.openai"
_HEADER = "x-request-id"


def hooks(parts: IdParts) -> List[Any]:
    def create(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(original).bind(*args, **kwargs)
        named = arguments.arguments
        named["raw_request"] = put_parts(parts, named["request"], named.get("raw_request"))
        return original(*arguments.args, **arguments.kwargs)

    return [
        (f"{_OPENAI}.chat_completion.serving:OpenAIServingChat.create_chat_completion", "raw_request", create),
        (f"{_OPENAI}.completion.serving:OpenAIServingCompletion.create_completion", "raw_request", create),
    ]


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
