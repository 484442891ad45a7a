"""The outermost part of an engine's HTTP application. It tells clients where they can read their stream again, and lets Afterbay
migrate a request.

- An answer gets the header `X-Afterbay-Stream` if the connector of the engine has named the request's stream.
- A request with `X-Afterbay-Migration` keeps the rid in its `X-Request-Id`. Without a valid token it reaches no engine.

The gate is ASGI, which all these applications are. This module must not know any engine.
"""
from __future__ import annotations

import functools
import json
import logging
import time
from contextvars import ContextVar
from typing import Any, Awaitable, Callable, Dict, List, MutableMapping, Optional, Set, Tuple
from urllib.parse import quote, unquote_to_bytes

from . import capability

logger = logging.getLogger("afterbay.http")

# The application's method that makes everything behind the gate, as MODULE, CLASS.METHOD.
TARGET = ("fastapi.applications", "FastAPI.build_middleware_stack")
MIGRATE, STREAM, REQUEST_ID = b"x-afterbay-migration", b"x-afterbay-stream", b"x-request-id"
# What the gate and the engine's connector tell each other in the state of a request: the id by which the client can read its stream,
# and the rid of a request that Afterbay migrates.
STREAM_ID, RID = "afterbay_stream", "afterbay_rid"
# The life of a token, as that of `afterbay clients token` and of `clients.keep`.
LIFE_S = 3600
# An id over this bound gets no header, because proxies take headers of a few KiB. A migrated rid may be as long as rows have it.
ID_BYTES_MAX, RID_BYTES_MAX = 512, 4096

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]
Header = Tuple[bytes, bytes]

_scope: ContextVar[Optional[Scope]] = ContextVar("afterbay_scope", default=None)


def gate(key_file: Optional[str], migrates: str) -> Callable[..., App]:
    """Return the hook on `TARGET`. `migrates` is the path of requests that Afterbay migrates."""
    return lambda original, *args, **kwargs: Gate(original(*args, **kwargs), key_file, migrates)


def scope_now() -> Optional[Scope]:
    """Return the HTTP request that this task works for."""
    return _scope.get()


def migrated_rid() -> Optional[str]:
    """Return the rid of the request that Afterbay migrates in this task, or None."""
    scope = _scope.get()
    return None if scope is None else scope["state"].get(RID)


def refuse_several(is_several: bool) -> None:
    """Refuse to migrate what is not one request."""
    if is_several:
        from fastapi import HTTPException

        raise HTTPException(400, "X-Afterbay-Migration: is of one request, must be one prompt and n = 1")


class Gate:
    def __init__(self, app: App, key_file: Optional[str], migrates: str):
        self._app, self._key_file, self._migrates = app, key_file, migrates
        self._migrated: Set[Optional[str]] = set()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        token = _header(scope, MIGRATE) if scope["type"] == "http" else None
        # An application in another one is behind the other's gate.
        if scope["type"] != "http" or _scope.get() is not None or (token is None and self._key_file is None):
            return await self._app(scope, receive, send)
        # A copy, because a server may share one state.
        state: Dict[str, Any] = dict(scope.get("state", {}))
        scope["state"] = state
        rid = None
        if token is not None:
            rid, refused = self._admit(scope, token)
            if rid is None:
                return await _answer(send, *refused)
            state[RID] = rid
            self._migrated.add(rid)
        before = _scope.set(scope)
        try:
            await self._app(scope, receive, self._answering(state, send))
        finally:
            _scope.reset(before)
            if rid is not None:
                self._migrated.discard(rid)

    def _admit(self, scope: Scope, token: bytes) -> Tuple[Optional[str], Tuple[int, str]]:
        """Return the rid of a request to migrate, or None with the status and the reason."""
        path, root = scope["path"], scope.get("root_path", "")
        path = path[len(root) :] if path.startswith(root) else path
        if (scope["method"], path) != ("POST", self._migrates):
            return None, (400, f'{scope["method"]} {path}: must be POST {self._migrates}')
        encoded = _header(scope, REQUEST_ID)
        try:
            rid = unquote_to_bytes(encoded or b"").decode()
        except UnicodeDecodeError:
            rid = ""
        if not 0 < len(rid.encode()) <= RID_BYTES_MAX:
            return None, (400, f"needs X-Request-Id, the rid: percent-encoded UTF-8 of 1 to {RID_BYTES_MAX} bytes")
        if self._key_file is None:
            return None, (403, f"{capability.VARIABLE} is not set for this engine")
        try:
            known = capability.secrets(self._key_file)
        except capability.KeyFileError as why:
            return None, (503, f"{capability.VARIABLE} {why}")
        why_not = capability.wrong(known, capability.MIGRATE, rid, token.decode("latin-1"), time.time())
        if why_not:
            return None, (403, why_not)
        if rid in self._migrated:
            return None, (409, f"{rid}: is being migrated")
        return rid, (200, "")

    def _answering(self, state: Dict[str, Any], send: Any) -> Any:
        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":
                try:
                    message = {**message, "headers": [*message.get("headers", ()), *self._headers(state, message)]}
                except Exception as error:  # an answer without our header is better than none
                    _warn(str(error))
            elif not message.get("more_body"):
                # The application may work on behind its answer: SGLang does for 2 s.
                self._migrated.discard(state.get(RID))
            await send(message)

        return answer

    def _headers(self, state: Dict[str, Any], message: Any) -> List[Header]:
        rid, stream_id = state.get(RID), state.get(STREAM_ID)
        if rid is not None:
            return [(MIGRATE, quote(rid, safe="").encode())]
        if not stream_id or message["status"] != 200 or len(stream_id.encode()) > ID_BYTES_MAX or self._key_file is None:
            return []
        token = capability.mint(capability.secrets(self._key_file)[0], capability.READ, stream_id, int(time.time()) + LIFE_S)
        added = [(STREAM, f"/v1/streams/{quote(stream_id, safe='')}?token={token}".encode())]
        # A page of another origin reads only headers that are named.
        if any(name.lower() == b"access-control-allow-origin" for name, _ in message.get("headers", ())):
            added.append((b"access-control-expose-headers", STREAM))
        return added


@functools.lru_cache(maxsize=16)
def _warn(error: str) -> None:
    """Log that an answer lacks its header. An error that comes again is not logged again."""
    logger.warning("afterbay: answers have no X-Afterbay-Stream: %s", error)


def _header(scope: Scope, wanted: bytes) -> Optional[bytes]:
    return next((value for name, value in scope["headers"] if name.lower() == wanted), None)


async def _answer(send: Any, status: int, why: str) -> None:
    body = json.dumps({"error": {"message": f"X-Afterbay-Migration: {why}", "type": "invalid_request_error", "code": status}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
