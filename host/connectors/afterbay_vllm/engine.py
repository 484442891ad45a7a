"""Re-routes an EngineCore: its outputs go to Afterbay, and it takes aborts from Afterbay too.

vLLM starts the thread of the input sockets first and notices when that thread dies, so everything that can be refused happens
there. This module must not know frames. It writes the rendezvous file of each API server.
"""
from __future__ import annotations

import inspect
import logging
from typing import Any, Callable, List

from afterbay_connector import introduction
from afterbay_connector.rendezvous import write
from afterbay_connector.settings import Refused

from . import rendezvous, request_record
from .settings import Settings
from .versions import is_untried, untried

# Loggers outside of vLLM's namespace have no handler.
logger = logging.getLogger("vllm.afterbay")

_CORE_MODULE = "vllm.v1.engine.core"
_CORE = f"{_CORE_MODULE}:EngineCoreProc"
# The fields that Afterbay reads, and without which it forwards frames unread.
NEEDED = {"EngineCoreOutputs": ["engine_index", "outputs"], "EngineCoreOutput": ["request_id", "new_token_ids", "finish_reason"]}
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"


def hooks(settings: Settings) -> List[Any]:
    def inputs(original: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> Any:
        announce(settings, engine)
        arguments = _bind(original, engine, *args, **kwargs)
        arguments.arguments["input_addresses"] = [*arguments.arguments["input_addresses"], *settings.abort]
        return original(*arguments.args, **arguments.kwargs)

    introduced: List[bytes] = []
    sockets: List[Any] = []

    def outputs(original: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = _bind(original, engine, *args, **kwargs)
        arguments.arguments["output_paths"] = list(settings.ingress)
        introduced[:] = [introduction.encode(rendezvous.introduce(settings, engine))]
        request_record.send_in_place(engine, sockets)
        return original(*arguments.args, **arguments.kwargs)

    def socket_made(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The EngineCore's sockets to Afterbay carry the introduction before any frame."""
        socket = original(*args, **kwargs)
        if introduced and _bind(original, *args, **kwargs).arguments["path"] in settings.ingress:
            socket.send(introduced[0])
            sockets.append(socket)
        return socket

    return [
        (f"{_CORE}.process_input_sockets", "input_addresses", inputs),
        (f"{_CORE}.process_output_sockets", "output_paths", outputs),
        (f"{_CORE_MODULE}:make_zmq_socket", "path", socket_made),
        (f"{_SCHEDULER}.__init__", "include_finished_set", name_finished_requests),
        (f"{_CORE_MODULE}:EngineCore.preprocess_add_request", "request", request_record.announce),
        (f"{_SCHEDULER}._update_request_as_session", "session", request_record.announce_turn),
    ]


def announce(settings: Settings, engine: Any) -> None:
    """Write the rendezvous file of each API server. Every EngineCore of a server writes the same."""
    paths = list(engine.addresses.outputs)
    if len(paths) != len(settings.ingress):
        raise Refused(
            f"vLLM has {len(paths)} API servers (--api-server-count), and AFTERBAY_INGRESS names {len(settings.ingress)} endpoints, must be "
            f"one for each. With the launcher: afterbay vllm --api-servers {len(paths)} -- COMMAND"
        )
    introduced = rendezvous.introduce(settings, engine)
    introduction.check(introduced, NEEDED)
    if is_untried(introduced["version"]):
        logger.warning("%s", untried(introduced["version"], introduction.summary(introduced)))
    for client, (ingress, down) in enumerate(zip(settings.ingress, paths)):
        logger.info("afterbay: the output for API server %d goes to %s, and its reader is %s", client, ingress, down)
        if settings.rendezvous:
            write(settings.file(client), rendezvous.describe(settings, engine, client, down))


def name_finished_requests(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Let frames name the requests that ended, including those whose client left: such a request has no last row."""
    arguments = _bind(original, *args, **kwargs)
    arguments.arguments["include_finished_set"] = True
    return original(*arguments.args, **arguments.kwargs)


def _bind(function: Callable[..., Any], *args: Any, **kwargs: Any) -> inspect.BoundArguments:
    return inspect.signature(function).bind(*args, **kwargs)
