"""Re-routes the detokenizer's output socket to Afterbay: the second leg of a request.

This module makes the only change to the detokenizer: the PUSH of its batches connects to Afterbay instead of the
TokenizerManager. It must not know frames. It then writes a second rendezvous file (`rendezvous.text_file`).
"""
from __future__ import annotations

import logging
import types
from typing import Any, List, Tuple

from afterbay_connector import introduction
from afterbay_connector.rendezvous import write

from . import rendezvous
from .ingress import replace_socket
from .settings import Settings

logger = logging.getLogger("afterbay.sglang")

_DETOKENIZER = "sglang.srt.managers.detokenizer_manager.DetokenizerManager"


def hooks(settings: Settings) -> List[Tuple[str, str, Any]]:
    def after_init(_result: Any, detokenizer: Any, server_args: Any, port_args: Any, *_args: Any, **_kwargs: Any) -> None:
        reroute(settings, detokenizer, server_args, port_args)

    return [(f"{_DETOKENIZER}.__init__", "AFTER", after_init)]


def reroute(settings: Settings, detokenizer: Any, server_args: Any, port_args: Any) -> None:
    """Connect the detokenizer's output to Afterbay before it sends anything. Several share one ingress and write equal files."""
    facts = rendezvous.Facts.of(types.SimpleNamespace(server_args=server_args), port_args)
    _, why = rendezvous.text_leg(facts, settings)
    if why is not None:
        logger.info("afterbay: the detokenizer's output stays direct: %s", why)
        return
    if facts.get("tokenizer_worker_num", 1) > 1:
        _send_whole(detokenizer, settings.text_ingress)
        detokenizer.send_to_tokenizer.send(introduction.encode(rendezvous.introduce(facts)))
    else:
        socket = getattr(detokenizer, "send_to_tokenizer", None)
        if socket is None:
            raise RuntimeError("afterbay: this SGLang's detokenizer has no send_to_tokenizer; unset AFTERBAY_TEXT_INGRESS to leave its output direct")
        detokenizer.send_to_tokenizer = replace_socket(socket, settings.text_ingress, rendezvous.introduce(facts))
    logger.info("afterbay: the detokenizer's output goes to %s, and its reader is %s", settings.text_ingress, port_args.tokenizer_ipc_name)
    if settings.rendezvous:
        write(rendezvous.text_file(settings), rendezvous.describe_text(facts, settings))


def _send_whole(detokenizer: Any, endpoint: str) -> None:
    """Send whole batches, as to a single tokenizer, instead of rows to each tokenizer. Afterbay splits the batches."""
    import zmq
    from sglang.srt.utils.network import get_zmq_socket

    detokenizer.send_to_tokenizer = get_zmq_socket(detokenizer.recv_from_scheduler.context, zmq.PUSH, endpoint, False)
    detokenizer.multi_http_worker_event_loop = detokenizer.event_loop
