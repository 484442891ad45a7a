"""Sends the name of a request's LoRA adapter to Afterbay, before the request's first row.

This module runs in the scheduler's process, and finds the name of an adapter. It must not know sockets (`ingress`).
"""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

from afterbay_connector import attributes

from .ingress import output_sender

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
NOT_HOOKED = "requests have no attribute lora"


def hooks() -> List[Tuple[str, str, Any]]:
    return [(f"{_SCHEDULER}.{name}", "AROUND", announce) for name in ("handle_generate_request", "handle_embedding_request")]


def announce(original: Callable[..., Any], scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    sender = output_sender(scheduler)
    name = lora(scheduler, request) if sender.socket is not None else None
    message = attributes.encode(request.rid, lora=name) if name else None
    if message:
        sender.socket.send(message)
    return original(scheduler, request, *args, **kwargs)


def lora(scheduler: Any, request: Any) -> Optional[str]:
    """Return the name of the adapter: SGLang sends it to the scheduler since 0.5.23, and the adapter's id before."""
    lora_id = getattr(request, "lora_id", None)
    if not lora_id or getattr(request, "lora_name", None):
        return getattr(request, "lora_name", None)
    worker = getattr(scheduler, "tp_worker", None)
    runner = getattr(getattr(worker, "worker", worker), "model_runner", None)
    loaded = getattr(getattr(runner, "lora_manager", None), "lora_refs", {})
    return getattr(loaded.get(lora_id), "lora_name", None) or lora_id
