"""Sends the name of a request's LoRA adapter to Afterbay, and whether the request is a session, before the request's first row.

A session (a request whose input is streamed) has a row with a finish reason at the end of each turn. This module runs in the
EngineCore: its thread of the output sockets sends the message in its place between the frames. It must not know frames.
"""
from __future__ import annotations

from typing import Any, Callable, List, NamedTuple

from afterbay_connector import attributes

NOT_HOOKED = "requests have no attributes lora and session"


class Message(NamedTuple):
    client: int  # the API server that reads the request's output
    content: bytes


def announce(original: Callable[..., Any], engine: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    queue = getattr(engine, "output_queue", None)
    # Later inputs of a session have the id of a request that the scheduler knows.
    known = getattr(getattr(engine, "scheduler", None), "requests", ())
    if queue is not None and request.request_id not in known:
        lora = getattr(getattr(request, "lora_request", None), "lora_name", None)
        content = attributes.encode(request.request_id, lora=lora, session=getattr(request, "resumable", False) or None)
        if content:
            queue.put_nowait(Message(request.client_index, content))
    return original(engine, request, *args, **kwargs)


def send_in_place(engine: Any, sockets: List[Any]) -> None:
    """Let the thread of the output sockets send the messages of the queue. Call it in this thread."""
    queue = getattr(engine, "output_queue", None)
    if queue is None:
        return
    original = queue.get

    def get(*args: Any, **kwargs: Any) -> Any:
        while True:
            output = original(*args, **kwargs)
            if not isinstance(output, Message):
                return output
            sockets[output.client].send(output.content)

    queue.get = get
