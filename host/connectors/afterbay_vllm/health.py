"""Makes vLLM's `/health` answer 503 while Afterbay is away.

Without this, vLLM asks only whether its engine's process lives. This module watches the API server's output socket, which only Afterbay
connects to. It must not know frames.
"""
from __future__ import annotations

import inspect
import logging
from typing import Any, Callable, List

from afterbay_connector.peer import Peer

from .settings import Settings

logger = logging.getLogger("vllm.afterbay")

# The state of this process. An API server has one.
_peers: List[Peer] = []


def hooks(settings: Settings) -> List[Any]:
    def made(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import zmq

        socket = original(*args, **kwargs)
        if inspect.signature(original).bind(*args, **kwargs).arguments["socket_type"] == zmq.PULL:
            # The engines name the socket to Afterbay after they have loaded the model.
            _peers.append(Peer(socket, logger, rendezvous=settings.rendezvous, expected=False))
        return socket

    return [
        ("vllm.v1.engine.core_client:make_zmq_socket", "socket_type", made),
        ("vllm.v1.engine.async_llm:AsyncLLM.check_health", "self", check),
    ]


async def check(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    for peer in _peers:
        peer.expect()
    if any(peer.is_lost() for peer in _peers):
        from vllm.v1.engine.exceptions import EngineDeadError

        # The error for which /health answers 503. Nothing else happens to the engine.
        raise EngineDeadError()
    return await original(*args, **kwargs)
