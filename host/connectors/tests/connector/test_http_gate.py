"""Tests the outermost part of an engine's HTTP application, with applications of a few lines."""
import asyncio
import contextvars
import json
import time
from urllib.parse import quote

import pytest

from afterbay_connector import capability, http_gate

SECRET = b"0123456789abcdef0123456789abcdef"
RID = "cmpl-acme~lease-60s~é/7-0-1a2b3c4d"


def named(stream_id, status=200, headers=()):
    """An application whose connector has named the stream of the request."""

    async def app(scope, receive, send):
        app.scopes.append((scope.get("state"), http_gate.scope_now() and http_gate.migrated_rid()))
        if stream_id is not None:
            scope["state"][http_gate.STREAM_ID] = stream_id
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})

    app.scopes = []
    return app


def behind(app, key_file):
    return http_gate.gate(key_file, "/v1/completions")(lambda: app)


def ask(gate, path="/v1/completions", method="POST", **headers):
    """Return the status, the headers that the gate has added, and the body."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]}
    asyncio.run(gate(scope, None, send))
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])


def to_migrate(rid=RID, life_s=60, secret=SECRET, purpose=capability.MIGRATE):
    return dict(X_Request_Id=quote(rid, safe=""), X_Afterbay_Migration=capability.mint(secret, purpose, rid, int(time.time()) + life_s))


def test_an_answer_says_where_its_stream_is_read_with_a_token_for_an_hour(clients_key):
    status, headers, body = ask(behind(named("é/7?"), clients_key))
    path, token = headers[b"x-afterbay-stream"].decode().split("?token=")
    assert (status, path, body, len(headers)) == (200, "/v1/streams/%C3%A9%2F7%3F", b"ab", 1)
    known = [SECRET]
    assert capability.wrong(known, capability.READ, "é/7?", token, time.time() + 3590) is None
    assert capability.wrong(known, capability.READ, "é/7?", token, time.time() + 3610) == "the token has expired"


def test_a_page_of_another_origin_may_read_the_header(clients_key):
    _, headers, _ = ask(behind(named("7", headers=[(b"Access-Control-Allow-Origin", b"*")]), clients_key))
    assert headers[b"access-control-expose-headers"] == b"x-afterbay-stream"


@pytest.mark.parametrize("stream_id, status", [(None, 200), ("7", 400), ("x" * 513, 200), ("\ud800", 200)], ids=["no stream", "an error", "long", "no UTF-8"])
def test_an_answer_without_a_stream_to_read_has_no_header(clients_key, stream_id, status):
    assert ask(behind(named(stream_id, status), clients_key)) == (status, {}, b"ab")


def test_a_key_file_that_goes_costs_the_header_and_one_warning(clients_key, caplog):
    gate = behind(named("7"), clients_key)
    open(clients_key, "w").close()
    assert ask(gate) == ask(gate) == (200, {}, b"ab")
    assert caplog.text.count("answers have no X-Afterbay-Stream: has 0 secrets") == 1


def test_without_a_key_file_and_for_what_is_no_http_nothing_changes(clients_key):
    app = named(None)
    assert ask(behind(app, None)) == (200, {}, b"ab")
    scope, seen = {"type": "lifespan"}, []

    async def lifespan(*args):
        seen.append(args)

    asyncio.run(behind(lifespan, clients_key)(scope, 1, 2))
    assert (app.scopes, seen) == ([(None, None)], [(scope, 1, 2)])


def test_an_application_in_another_adds_no_second_header(clients_key):
    _, headers, _ = ask(behind(behind(named("7"), clients_key), clients_key))
    assert list(headers) == [b"x-afterbay-stream"]


def test_a_migrated_request_keeps_its_rid_and_is_answered_with_it(clients_key):
    app = named("7")
    gate = behind(app, clients_key)
    for _ in range(2):
        assert ask(gate, **to_migrate()) == (200, {b"x-afterbay-migration": quote(RID, safe="").encode()}, b"ab")
    assert [rid for _, rid in app.scopes] == [RID, RID]
    assert http_gate.migrated_rid() is None


def test_the_path_is_looked_at_behind_the_root_path(clients_key):
    gate, sent = behind(named(None), clients_key), []

    async def send(message):
        sent.append(message)

    headers = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in to_migrate().items()]
    asyncio.run(gate({"type": "http", "method": "POST", "path": "/api/v1/completions", "root_path": "/api", "headers": headers}, None, send))
    assert sent[0]["status"] == 200


@pytest.mark.parametrize(
    "status, why, asked",
    [
        (400, "POST /v1/chat/completions: must be POST /v1/completions", dict(path="/v1/chat/completions", **to_migrate())),
        (400, "PUT /v1/completions: must be POST", dict(method="PUT", **to_migrate())),
        (400, "needs X-Request-Id, the rid: percent-encoded UTF-8 of 1 to 4096 bytes", dict(X_Afterbay_Migration="3e8.x")),
        (400, "needs X-Request-Id", {**to_migrate(), "X_Request_Id": "%FF"}),
        (400, "needs X-Request-Id", to_migrate("x" * 4097)),
        (403, "the token is not for this request", {**to_migrate(), "X_Request_Id": "other"}),
        (403, "the token is not for this request", to_migrate(purpose=capability.READ)),
        (403, "the token is not for this request", to_migrate(secret=b"x" * 32)),
        (403, "the token has expired", to_migrate(life_s=-2)),
    ],
)
def test_a_request_to_migrate_without_a_valid_token_reaches_no_engine(clients_key, status, why, asked):
    app = named(None)
    answered, _, body = ask(behind(app, clients_key), **asked)
    error = json.loads(body)["error"]
    assert (answered, error["code"], app.scopes) == (status, status, [])
    assert error["message"].startswith(f"X-Afterbay-Migration: {why}")


def test_without_a_key_file_no_request_is_migrated(clients_key):
    app = named(None)
    status, _, body = ask(behind(app, None), **to_migrate())
    assert (status, app.scopes) == (403, []) and b"AFTERBAY_CLIENTS_KEY is not set for this engine" in body
    gate = behind(app, clients_key)
    open(clients_key, "w").close()
    status, _, body = ask(gate, **to_migrate())
    assert (status, app.scopes) == (503, []) and b"AFTERBAY_CLIENTS_KEY has 0 secrets" in body


def test_a_rid_is_migrated_once_at_a_time_until_its_answer_ends(clients_key):
    other = []

    async def app(scope, receive, send):
        # In a thread, because a request in this task would be behind the gate already.
        other.append(await asyncio.to_thread(lambda: contextvars.Context().run(ask, gate, **to_migrate())) if len(other) == 0 else None)
        await named(None)(scope, receive, send)

    gate = behind(app, clients_key)
    assert ask(gate, **to_migrate())[0] == 200
    assert other[0][0] == 409 and b"is being migrated" in other[0][2]
    assert ask(gate, **to_migrate())[0] == 200
