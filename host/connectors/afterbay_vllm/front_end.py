"""Counts the frames that vLLM's Python API server has finished.

vLLM's client decodes each message of its output socket in one task, and queues those with rows or statistics; another task takes
them from the queue and handles them. A queued frame is finished when that task asks for the next one. All other frames are
finished when they are decoded. This module must not know the page's bytes. It does not change vLLM's own work: without a page
the API server counts nothing, and the log has the reason.
"""
from __future__ import annotations

import inspect
import logging
from typing import Any, Callable, List, Optional

from afterbay_connector.credit import CreditError, CreditPage

from .settings import Settings

logger = logging.getLogger("vllm.afterbay")

_CLIENT = "vllm.v1.engine.core_client:AsyncMPClient"
# The attribute of a client that holds its count, so that both live equally long.
_COUNT = "_afterbay_count"


def hooks(settings: Settings) -> List[Any]:
    def made(original: Callable[..., Any], client: Any, *args: Any, **kwargs: Any) -> None:
        arguments = inspect.signature(original).bind(client, *args, **kwargs)
        arguments.apply_defaults()
        # The page opens before the constructor binds the socket. A connected sender therefore finds the new generation.
        page = _open(settings, arguments.arguments["client_index"])
        original(client, *args, **kwargs)
        if page is not None:
            setattr(client, _COUNT, Count(page, client.decoder))

    return [
        (f"{_CLIENT}.__init__", "client_index", made),
        (f"{_CLIENT}.get_output_async", "self", count_when_asked_again),
    ]


async def count_when_asked_again(original: Callable[..., Any], client: Any) -> Any:
    count = getattr(client, _COUNT, None)
    if count is None:
        return await original(client)
    count.asked()
    outputs = await original(client)
    count.taken()
    return outputs


class Count:
    """Counts a client's frames. `decoder` is the client's own, whose `decode` is replaced."""

    def __init__(self, page: CreditPage, decoder: Any):
        self._page = page
        self._in_hand = False
        decode = decoder.decode

        def decode_and_count(frames: Any) -> Any:
            outputs = decode(frames)
            is_queued = not outputs.utility_output and (outputs.outputs or outputs.scheduler_stats)
            if not is_queued:
                page.finished()
            return outputs

        decoder.decode = decode_and_count

    def asked(self) -> None:
        """The client asks for the next frame, so the one in hand is finished."""
        if self._in_hand:
            self._in_hand = False
            self._page.finished()

    def taken(self) -> None:
        self._in_hand = True


def _open(settings: Settings, client: int) -> Optional[CreditPage]:
    try:
        page = CreditPage(settings.credit, settings.page(client))
    except (CreditError, OSError) as error:
        logger.error("afterbay: API server %d counts no finished frames: %s", client, error)
        return None
    logger.info("afterbay: API server %d counts finished frames in %s", client, page.path)
    return page
