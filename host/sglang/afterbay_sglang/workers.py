"""The tokenizers of --tokenizer-worker-num, each where Afterbay knows it to be: a socket by name and a page, by number.

Owns the numbers: a worker takes the first whose page no living worker has, so one that is started in the place of another has
its names. Must not know what the rendezvous file says of them, nor what counts as finished (`readers`). SGLang loads plugins in
none of the processes that these tokenizers are in. Its HTTP workers are told to serve `http_app`, which does; a process that joins
the engine by itself (`Engine.attach_tokenizer_worker`, Dynamo's gateways) does so by `attached`.
"""
from __future__ import annotations

import logging
import os
import sys
from typing import Any, Dict, List, Optional, Tuple

from .credit import CreditError, CreditPage
from .settings import IPC_PATH_BYTES_MAX, Refused, Settings, fill

logger = logging.getLogger("afterbay.sglang")

# Afterbay has a sink for each; SGLang's own defaults stay far below.
WORKERS_MAX = 32
# The application that SGLang's HTTP workers import: ours, and the one that it stands for.
_APP = "SGLANG_HTTP_SERVER_APP_PATH"
_OUR_APP = "afterbay_sglang.http_app:app"
_SERVED_APP = "AFTERBAY_HTTP_APP"
_SGLANG_APP = "sglang.srt.entrypoints.http_server:app"
_PAGE = "tokenizer"
# A directory that only has the metadata of an entry point, which makes SGLang call `attached` early.
_ATTACHED_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "attached_path")

_has_router = False


def planned(facts: Any, settings: Settings) -> Tuple[List[Dict[str, Any]], Optional[str]]:
    """Where each of several tokenizers reads and counts, or why that cannot be known. Every process answers alike."""
    count = facts.get("tokenizer_worker_num", 1)
    if count <= 1:
        return [], None
    why = None
    if not settings.rendezvous or not settings.credit:
        why = "AFTERBAY_RENDEZVOUS and AFTERBAY_CREDIT must both be set"
    elif count > WORKERS_MAX:
        why = f"Afterbay connects to {WORKERS_MAX} at most"
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


def settle(settings: Settings, port_args: Any, workers: List[Dict[str, Any]]) -> Optional[CreditPage]:
    """Before a worker binds its socket: a number that is free, and its names. None: a further worker, which Afterbay reaches by
    way of SGLang's router."""
    try:
        page = CreditPage(settings.credit, _PAGE, numbers=len(workers))
    except (CreditError, OSError) as error:
        logger.warning("afterbay: this tokenizer is reached by way of SGLang's router: %s", error)
        return None
    worker = next(worker for worker in workers if worker["credit"] == os.path.abspath(page.path))
    port_args.tokenizer_ipc_name = worker["ipc"]
    logger.info("afterbay: this tokenizer reads from %s, and counts in %s", worker["ipc"], page.path)
    return page


def router_is_here() -> None:
    """SGLang's router is made in this process: whichever process it starts from here on to join the engine loads plugins."""
    global _has_router
    _has_router = True
    if _ATTACHED_PATH not in sys.path:
        # For processes that are spawned with this one's path, and for those that only have its environment.
        sys.path.append(_ATTACHED_PATH)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), _ATTACHED_PATH]))


def is_engines_own() -> bool:
    """Whether a tokenizer that is made in this process is the engine's own: it is beside the router. Dynamo's leader never uses
    it, so it takes no number; its rows go by way of the router."""
    return _has_router


def check_attached() -> None:
    """An engine with several tokenizers is used by processes that join it. They must be able to load plugins."""
    selected = os.environ.get("SGLANG_PLATFORM")
    if selected:
        raise Refused(
            f'SGLANG_PLATFORM "{selected}" is set: then a process that joins this engine (Engine.attach_tokenizer_worker, Dynamo\'s '
            "--gateway-workers) loads no plugins, and its rows would take the slow way through SGLang's router. Use one tokenizer, "
            "unset SGLANG_PLATFORM, or unset AFTERBAY_TEXT_INGRESS and AFTERBAY_CREDIT"
        )


def load_in_http_workers(settings: Settings) -> None:
    """From here on an HTTP worker that SGLang starts loads plugins. Nothing else reads the variable."""
    if settings.ingress and settings.rendezvous and settings.credit and os.environ.get(_APP) != _OUR_APP:
        os.environ[_SERVED_APP] = os.environ.get(_APP) or _SGLANG_APP
        os.environ[_APP] = _OUR_APP


def served_app() -> str:
    """`module:attribute` of the application that a worker serves."""
    return os.environ.get(_SERVED_APP) or _SGLANG_APP


def _ipc(settings: Settings, number: int) -> str:
    """Beside the rendezvous file (the first rank's, where each has its own)."""
    return f"ipc://{os.path.abspath(fill(settings.rendezvous, 0))}.worker-{number}"


def _app_can_be_named() -> bool:
    try:
        from sglang.srt.environ import envs
    except ImportError:
        return False
    return hasattr(envs, _APP)
