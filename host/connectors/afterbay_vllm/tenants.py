"""Puts the tenant of a request into the id that vLLM's API server makes for it.

The API server takes the id from the header X-Request-Id, or else from the body's `request_id`. This module runs in the Python API
server. It must not know the engine.
"""
from __future__ import annotations

import inspect
from typing import Any, Callable, List

from afterbay_connector.tenant import TenantSource, with_tenant

_OPENAI = "vllm.entrypoints.openai"
_HEADER = "x-request-id"


def hooks(source: TenantSource) -> List[Any]:
    def create(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(original).bind(*args, **kwargs)
        named = arguments.arguments
        named["raw_request"] = put_tenant(source, named["request"], named.get("raw_request"))
        return original(*arguments.args, **arguments.kwargs)

    return [
        (f"{_OPENAI}.chat_completion.serving:OpenAIServingChat.create_chat_completion", "raw_request", create),
        (f"{_OPENAI}.completion.serving:OpenAIServingCompletion.create_completion", "raw_request", create),
    ]


def put_tenant(source: TenantSource, request: Any, raw_request: Any) -> Any:
    """Return the HTTP request without its id, which is in the body now, behind the tenant. vLLM itself calls without an HTTP request."""
    if raw_request is None:
        return None
    tenant = source.of(raw_request.headers, request.user)
    request.request_id = with_tenant(tenant, raw_request.headers.get(_HEADER) or request.request_id)
    # The state is made before the copy, so that both share it.
    raw_request.state  # noqa: B018
    headers = [(name, value) for name, value in raw_request.scope["headers"] if name.lower() != _HEADER.encode()]
    return type(raw_request)({**raw_request.scope, "headers": headers}, raw_request.receive)
