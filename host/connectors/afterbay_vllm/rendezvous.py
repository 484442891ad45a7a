"""The rendezvous file of one API server: the facts that Afterbay needs. README.md documents each field.

This module collects the fields from their places in vLLM. It must not change anything in vLLM.
"""
from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional, Tuple

from afterbay_connector import __version__, front_end, introduction
from afterbay_connector.rendezvous import FORMAT, tokenizer_path

from .settings import Settings
from .versions import joins_none, vllm_version


def describe(settings: Settings, engine: Any, client: int, down: str) -> Dict[str, Any]:
    config = engine.vllm_config
    model, version = config.model_config, vllm_version()
    credit, credit_none = _credit(settings, client, down)
    return {
        "format": FORMAT,
        "connector": __version__,
        "engine": "vllm",
        "leg": "tokens",
        "version": version,
        # The process that started the EngineCores, and that ends when one of them does.
        "pid": os.getppid(),
        "written_unix_ns": time.time_ns(),
        "instance_id": "",
        "mode": "normal",
        "ingress": settings.ingress[client],
        "down": down,
        "down_kind": "api_server",
        "client": client,
        "credit": credit,
        "credit_none": credit_none,
        "joins_none": joins_none(version),
        "single_calls": front_end.single_calls(),
        "ipc_format": "msgpack",
        "abort": settings.abort[client] if settings.abort else None,
        "abort_none": None if settings.abort else "AFTERBAY_ABORT is not set",
        "model_path": model.model,
        "tokenizer_path": tokenizer_path(model.tokenizer or model.model, getattr(model, "tokenizer_revision", None)),
        "served_model_name": model.served_model_name,
        "introduction": introduce(settings, engine),
        "data_parallel_size": config.parallel_config.data_parallel_size,
    }


def introduce(settings: Settings, engine: Any) -> Dict[str, Any]:
    from vllm.v1 import engine as messages

    config = engine.vllm_config
    model = config.model_config
    return introduction.describe(
        "vllm",
        vllm_version(),
        {name: getattr(messages, name, None) for name in ("EngineCoreOutputs", "EngineCoreOutput")},
        model=model.model,
        tokenizer=model.tokenizer,
        # API servers parse tool calls, and their arguments are not the engine's.
        tool_call_parser=None,
        reasoning_parser=getattr(getattr(config, "structured_outputs_config", None), "reasoning_parser", None) or None,
        rank=getattr(config.parallel_config, "data_parallel_rank", 0) or 0,
        front_ends=len(settings.ingress),
    )


def _credit(settings: Settings, client: int, down: str) -> Tuple[Optional[str], Optional[str]]:
    """Return the page that counts the frames that the API server has finished, or None and the reason."""
    if not settings.credit:
        return None, "AFTERBAY_CREDIT is not set"
    if _rust_front_end():
        return None, "the Rust front end loads no plugins (VLLM_USE_RUST_FRONTEND)"
    if not down.startswith("ipc://"):
        return None, f"the API server reads from {down} and may run on another node"
    return os.path.join(os.path.abspath(settings.credit), settings.page(client)), None


def _rust_front_end() -> bool:
    from vllm import envs

    return bool(getattr(envs, "VLLM_USE_RUST_FRONTEND", False))
