"""Puts Afterbay between the scheduler and SMG, whose plugin (`smg-grpc-servicer`) puts a sender of its own in the place of SGLang's.

    scheduler ▶ MsgpackSendSocket ─PUSH▶ Afterbay ─PUSH▶ PULL that SMG has bound

The sender gets its socket in SMG's handshake, when the model is loaded. This module replaces that socket before anything is sent, and
lets the scheduler's input take aborts from Afterbay, too. It must not know frames.
"""
from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
from typing import Any, Dict, Optional

from afterbay_connector import introduction
from afterbay_connector.peer import Peer
from afterbay_connector.rendezvous import write

from . import abort, rendezvous
from .settings import Settings, fill

logger = logging.getLogger("afterbay.sglang")

ENGINE = "smg"
_MODULE = "smg_grpc_servicer.sglang.zmq_msgpack"
# The messages with rows, and the fields of them that Afterbay reads.
_NEEDED = {
    "BatchTokenIDSlimOutput": ["rids", "output_ids", "finished_reasons"],
    "BatchEmbeddingSlimOutput": ["rids", "finished_reasons"],
}


def is_sender(sender: Any) -> bool:
    """Return whether the sender is that of SMG's plugin. It may have no socket yet."""
    return type(sender).__module__ == _MODULE and hasattr(sender, "socket")


def reroute(settings: Settings, scheduler: Any, port_args: Any, sender: Any) -> None:
    """Connect the output to Afterbay and write the rendezvous file. Call it after the handshake. SGLang ends if this raises."""
    import zmq

    from .ingress import replace_socket

    if not isinstance(sender.socket, zmq.Socket):
        raise RuntimeError(f"afterbay: SMG's sender has no socket after the scheduler's start ({_MODULE} {_version()}): unset AFTERBAY_* to run without Afterbay")
    facts = rendezvous.Facts.of(scheduler, port_args)
    introduced = _introduce(facts)
    introduction.check(introduced, _NEEDED)
    ingress = fill(settings.ingress, facts.dp_rank, "AFTERBAY_INGRESS")
    facts.mode, facts.down_kind = ENGINE, "api_server"
    facts.down = sender.socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
    sender.socket = replace_socket(sender.socket, ingress, introduced, lambda socket: Peer(socket, logger, rendezvous=settings.rendezvous))
    logger.info("afterbay: the output goes to %s, and its reader is SMG at %s", ingress, facts.down)
    requests = getattr(getattr(scheduler, "recv_from_tokenizer", None), "socket", None)
    aborts = abort.connect(settings, requests, zmq.DEALER, facts.dp_rank, facts.dp_size)
    if settings.rendezvous:
        content = rendezvous.describe(facts, ingress, settings, aborts)
        content.update(
            engine=ENGINE,
            version=introduced["version"],
            ipc_format="msgpack",
            credit=None,
            credit_none="SMG counts no frames",
            single_calls="SMG parses tool calls itself, and some of its parsers lose arguments of a chunk with several tokens",
            workers=[],
            text_ingress=None,
            text_none="SMG makes the text itself",
            introduction=introduced,
            abort_req=None,
        )
        write(os.path.abspath(fill(settings.rendezvous, facts.dp_rank, "AFTERBAY_RENDEZVOUS")), content)


def _introduce(facts: rendezvous.Facts) -> Dict[str, Any]:
    module = sys.modules[_MODULE]
    classes = {name: getattr(module, name, None) for name in _NEEDED}
    return {**rendezvous.introduce(facts), **introduction.describe(ENGINE, _version(), classes)}


def _version() -> Optional[str]:
    try:
        return importlib.metadata.version("smg-grpc-servicer")
    except importlib.metadata.PackageNotFoundError:
        return None
