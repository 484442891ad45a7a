"""The tokenizers of --tokenizer-worker-num. Each has a number, and by it a socket name and a page that Afterbay knows.

A worker takes the first number whose page no live worker has locked, so that a replacement gets the names of its predecessor.
This module must not know the rendezvous file, nor when a frame is finished (`readers`). SGLang loads no plugins in the processes
of these tokenizers. HTTP workers load them by serving `http_app`. A process that joins the engine by itself
(`Engine.attach_tokenizer_worker`, Dynamo's gateways) loads them by `attached`.
"""
from __future__ import annotations

import logging
import os
import sys
from typing import Any, Dict, List, Optional, Tuple

from afterbay_connector.credit import CreditError, CreditPage
from afterbay_connector.settings import IPC_PATH_BYTES_MAX, Refused

from .settings import Settings, fill

logger = logging.getLogger("afterbay.sglang")

# Afterbay has a sink for each worker. SGLang's own defaults are far lower.
WORKERS_MAX = 32
# The variable that names the application of SGLang's HTTP workers, our application, and the one that ours
# serves.
_APP = "SGLANG_HTTP_SERVER_APP_PATH"
_OUR_APP = "afterbay_sglang.http_app:app"
_SERVED_APP = "AFTERBAY_HTTP_APP"
_SGLANG_APP = "sglang.srt.entrypoints.http_server:app"
_PAGE = "tokenizer"
# A directory with only the metadata of an entry point, which makes SGLang call `attached` early.
_ATTACHED_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "attached_path")

_has_router = False


def planned(facts: Any, settings: Settings) -> Tuple[List[Dict[str, Any]], Optional[str]]:
    """Return the socket and the page of each of several tokenizers, or an empty list and the reason. Equal in every process."""
    count = facts.get("tokenizer_worker_num", 1)
    if count <= 1:
        return [], None
    why = None
    if not settings.rendezvous or not settings.credit:
        why = "AFTERBAY_RENDEZVOUS and AFTERBAY_CREDIT must both be set"
    elif count > WORKERS_MAX:
        why = f"Afterbay connects to at most {WORKERS_MAX} of them"
    elif facts.get("node_rank", 0):
        why = "they run on another node"
    elif not _app_can_be_named():
        why = f"this SGLang's HTTP workers load no plugins, and it does not know {_APP}"
    elif len(os.fsencode(_ipc(settings, count - 1))) - len("ipc://") > IPC_PATH_BYTES_MAX:
        why = f"the path of {_ipc(settings, count - 1)} is over {IPC_PATH_BYTES_MAX} bytes: AFTERBAY_RENDEZVOUS must be shorter"
    if why:
        return [], f"with {count} tokenizers (--tokenizer-worker-num): {why}"
    directory = os.path.abspath(settings.credit)
    return [{"ipc": _ipc(settings, number), "credit": os.path.join(directory, f"{_PAGE}-{number}")} for number in range(count)], None


def take_number(settings: Settings, port_args: Any, workers: List[Dict[str, Any]]) -> Optional[CreditPage]:
    """Give a worker a free number and its names, before the worker binds its socket. None if no number is free: Afterbay then
    reaches the worker through SGLang's router."""
    try:
        page = CreditPage(settings.credit, _PAGE, numbers=len(workers))
    except (CreditError, OSError) as error:
        logger.warning("afterbay: this tokenizer is reached through SGLang's router: %s", error)
        return None
    worker = next(worker for worker in workers if worker["credit"] == os.path.abspath(page.path))
    port_args.tokenizer_ipc_name = worker["ipc"]
    logger.info("afterbay: this tokenizer reads from %s and counts in %s", worker["ipc"], page.path)
    return page


def router_starts() -> None:
    """Make processes that this one starts load plugins. Call it in the process of SGLang's router: they may join the engine."""
    global _has_router
    _has_router = True
    if _ATTACHED_PATH not in sys.path:
        # For processes that are spawned with the path of this one, and for those that only inherit its
        # environment.
        sys.path.append(_ATTACHED_PATH)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), _ATTACHED_PATH]))


def is_engines_own() -> bool:
    """Return whether a tokenizer in this process is the engine's own, beside the router. Dynamo's leader never uses it, so it
    takes no number, and its rows go through the router."""
    return _has_router


def check_attached() -> None:
    """Refuse to start if the processes that join an engine with several tokenizers cannot load plugins."""
    selected = os.environ.get("SGLANG_PLATFORM")
    if selected:
        raise Refused(
            f'SGLANG_PLATFORM "{selected}" is set: a process that joins this engine (Engine.attach_tokenizer_worker, Dynamo\'s '
            "--gateway-workers) then loads no plugins, and its rows take the slow way through SGLang's router. Use one tokenizer, "
            "unset SGLANG_PLATFORM, or unset AFTERBAY_TEXT_INGRESS and AFTERBAY_CREDIT"
        )


def load_in_http_workers() -> None:
    """Make the HTTP workers that SGLang starts load plugins. Nothing else reads the variable."""
    if os.environ.get(_APP) != _OUR_APP:
        os.environ[_SERVED_APP] = os.environ.get(_APP) or _SGLANG_APP
        os.environ[_APP] = _OUR_APP


def served_app() -> str:
    """Return `module:attribute` of the application that a worker serves."""
    return os.environ.get(_SERVED_APP) or _SGLANG_APP


def _ipc(settings: Settings, number: int) -> str:
    """Return a worker's endpoint: beside the rendezvous file, or beside that of the first rank."""
    return f"ipc://{os.path.abspath(fill(settings.rendezvous, 0))}.worker-{number}"


def _app_can_be_named() -> bool:
    try:
        from sglang.srt.environ import envs
    except ImportError:
        return False
    return hasattr(envs, _APP)
