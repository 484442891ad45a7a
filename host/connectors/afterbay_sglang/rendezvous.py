"""The rendezvous file: the facts about the scheduler that Afterbay needs.

This module collects the fields of the file (README.md documents each) from their places in SGLang, which differ between
versions. It must not change anything in SGLang. `afterbay run --rendezvous FILE` reads the file.
"""
from __future__ import annotations

import importlib.metadata
import os
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from afterbay_connector import __version__, front_end, introduction
from afterbay_connector.rendezvous import FORMAT, tokenizer_path

from . import abort, detokenizer, workers
from .abort import NO_ABORTS
from .settings import Settings, fill
from .wire import classes, ipc_format

_SOCKET_NAMES = (
    "tokenizer_ipc_name",
    "detokenizer_ipc_name",
    "scheduler_input_ipc_name",
    "rpc_ipc_name",
    "metrics_ipc_name",
    "tokenizer_worker_ipc_name",
)

_NOTHING = object()


class Facts:
    """The facts of one scheduler, from their places in this SGLang: the published contexts (since 0.5.21), `ps`, or itself."""

    def __init__(self, port_args: Any, sources: List[Any]):
        self.port_args = port_args
        self._sources = sources
        # dp_rank is None without data parallelism. SGLang itself then reports 0 in its load snapshots.
        self.dp_rank = int(self.get("dp_rank") or 0)
        self.dp_size = int(self.get("num_dp_ranks") or self.get("dp_size") or 1)
        skips = bool(self.get("skip_tokenizer_init", False))
        self.mode = "skip_tokenizer_init" if skips else "normal"
        self.down_kind = "tokenizer" if skips else "detokenizer"
        self.down = getattr(port_args, "tokenizer_ipc_name" if skips else "detokenizer_ipc_name", None)

    @classmethod
    def of(cls, scheduler: Any, port_args: Any = None) -> "Facts":
        sources = [getattr(scheduler, "ps", None), scheduler.server_args, scheduler]
        try:
            from sglang.srt import runtime_context

            published = [runtime_context.get_parallel(), runtime_context.get_serving(), runtime_context.get_model()]
        except (ImportError, AttributeError, ValueError):  # not in this version, or not published in this process
            published = []
        return cls(port_args, published + sources)

    def get(self, name: str, default: Any = None) -> Any:
        for source in self._sources:
            try:
                value = getattr(source, name, _NOTHING)
            except Exception:  # a context rejects an unknown name or an unset value, differently in each version
                continue
            if value is not _NOTHING:
                return value
        return default


def describe(facts: Facts, ingress: str, settings: Settings, aborts: Tuple[Optional[str], Optional[str]] = NO_ABORTS) -> Dict[str, Any]:
    credit, credit_none = _credit(facts, settings)
    readers = [{**worker, "credit": worker["credit"] if credit else None} for worker in workers.planned(facts, settings)[0]]
    text_ingress, text_none = text_leg(facts, settings)
    peers = os.environ.get("SGLANG_ZMQ_ALLOWED_PEERS", "")
    model_path = facts.get("model_path")
    return {
        "format": FORMAT,
        "connector": __version__,
        "engine": "sglang",
        "leg": "tokens",
        "version": sglang_version(),
        "pid": os.getpid(),
        "written_unix_ns": time.time_ns(),
        "instance_id": getattr(facts.port_args, "instance_id", ""),
        "mode": facts.mode,
        "ingress": ingress,
        "down": facts.down,
        "down_kind": facts.down_kind,
        "credit": credit,
        "credit_none": credit_none,
        "single_calls": front_end.single_calls("SGLang's Rust server" if settings.rust_server else None),
        "workers": readers if facts.down_kind == "tokenizer" else [],
        "text_ingress": text_ingress,
        "text_none": text_none,
        "ipc_format": ipc_format(),
        **{name: getattr(facts.port_args, name, None) for name in _SOCKET_NAMES},
        "peer_allow_list": [peer.strip() for peer in peers.split(",") if peer.strip()] or None,
        "model_path": model_path,
        "tokenizer_path": tokenizer_path(facts.get("tokenizer_path") or model_path, facts.get("revision")),
        "served_model_name": facts.get("served_model_name") or model_path,
        "dp_rank": facts.dp_rank,
        "dp_size": facts.dp_size,
        "tp_size": facts.get("tp_size", 1),
        "pp_size": facts.get("pp_size", 1),
        "node_rank": facts.get("node_rank", 0),
        "tokenizer_worker_num": facts.get("tokenizer_worker_num", 1),
        "detokenizer_worker_num": facts.get("detokenizer_worker_num", 1),
        "incremental_streaming_output": bool(facts.get("incremental_streaming_output") or facts.get("stream_output")),
        "stream_interval": facts.get("stream_interval", 1),
        "introduction": introduce(facts),
        "abort": aborts[0],
        "abort_none": aborts[1],
        "abort_req": abort.request(),
    }


def introduce(facts: Facts) -> Dict[str, Any]:
    return introduction.describe(
        "sglang",
        sglang_version(),
        classes(),
        model=facts.get("model_path"),
        tokenizer=facts.get("tokenizer_path"),
        tool_call_parser=facts.get("tool_call_parser"),
        reasoning_parser=facts.get("reasoning_parser"),
        rank=facts.dp_rank,
        front_ends=facts.get("tokenizer_worker_num", 1),
    )


def silent_file(settings: Settings) -> str:
    """Return the path of the file of a node whose schedulers send no output: beside the file that they do not write."""
    return fill(settings.rendezvous, 0, "AFTERBAY_RENDEZVOUS") + ".silent"


def silent(node: int) -> Dict[str, Any]:
    """Say that a scheduler of another node than the first sends nothing. Afterbay then waits for nothing, unless another one sends."""
    return {
        "format": FORMAT,
        "connector": __version__,
        "engine": "sglang",
        "pid": os.getpid(),
        "why": f"this is node {node} of SGLang, and its schedulers send no output: a scheduler of another node sends for them",
    }


def describe_text(facts: Facts, settings: Settings) -> Dict[str, Any]:
    """Describe the detokenizers' leg. Several detokenizers write equal files, except for the time."""
    content = describe(facts, settings.text_ingress, settings, (None, "this is the text leg"))
    several = content["detokenizer_worker_num"] > 1
    content.update(
        leg="text",
        # The pid of SGLang's first process, which starts the detokenizers and contains the reader of this
        # leg.
        pid=os.getppid(),
        down=facts.port_args.tokenizer_ipc_name,
        down_kind="tokenizer",
        credit=os.path.join(os.path.abspath(settings.credit), "tokenizer") if settings.credit else None,
        credit_none=None if settings.credit else "AFTERBAY_CREDIT is not set",
        workers=workers.planned(facts, settings)[0],
        text_ingress=None,
        text_none="this is the text leg",
        detokenizer_ipc_name=None if several else content["detokenizer_ipc_name"],
    )
    return content


def text_file(settings: Settings) -> str:
    """Return the path of the text leg's file: beside the scheduler's file, or beside that of the first rank."""
    return fill(settings.rendezvous, 0, "AFTERBAY_RENDEZVOUS") + ".text"


def text_leg(facts: Facts, settings: Settings) -> Tuple[Optional[str], Optional[str]]:
    """Return the endpoint of the detokenizer's output, or None and the reason. Equal in every process."""
    if not settings.text_ingress:
        return None, "AFTERBAY_TEXT_INGRESS is not set"
    if facts.mode == "skip_tokenizer_init":
        return None, "with --skip-tokenizer-init the detokenizer has nothing to do"
    _, unknown = workers.planned(facts, settings)
    if unknown:
        return None, unknown
    if facts.get("node_rank", 0):
        return None, "the detokenizer runs on another node"
    if not detokenizer.loads_plugins():
        return None, detokenizer.NONE
    return settings.text_ingress, None


def _credit(facts: Facts, settings: Settings) -> Tuple[Optional[str], Optional[str]]:
    """Return the page that counts exactly the batch frames that `down` has finished, or None and the reason."""
    if not settings.credit:
        return None, "AFTERBAY_CREDIT is not set"
    if facts.get("node_rank", 0):
        return None, "the reader runs on another node"
    if facts.dp_size > 1 and "{dp_rank}" in settings.ingress:
        return None, f"{facts.dp_size} DP ranks, each with its own stream, push to one reader, and its count is that of all ranks"
    if facts.down_kind == "detokenizer":
        detokenizers = facts.get("detokenizer_worker_num", 1)
        if detokenizers > 1:
            return None, f"{detokenizers} detokenizers are behind a router, which loads no plugins; each counts only its share"
        if not detokenizer.loads_plugins():
            return None, detokenizer.NONE
    return os.path.join(os.path.abspath(settings.credit), facts.down_kind), None


def sglang_version() -> Optional[str]:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return getattr(sys.modules.get("sglang"), "__version__", None)
