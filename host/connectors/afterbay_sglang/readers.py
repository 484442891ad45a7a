"""Counts the frames that SGLang's readers have finished.

This module decides when a reader has finished a frame. It must not know the page's bytes. It does not change SGLang's own work:
each hook calls the original, and without a page the reader counts nothing and the log has the reason.

| reader               | process                            | finished when                                                    |
| TokenizerManager     | the engine's, each HTTP worker's   | `_handle_batch_output` has returned or raised                    |
| MultiTokenizerRouter | the engine's                       | the frame's rows are on the workers' sockets                     |
| DetokenizerManager   | its own                            | it asks for the next frame (its output is sent), or handling raised |
"""
from __future__ import annotations

import inspect
import logging
import os
import types
from typing import Any, Callable, List, Optional, Tuple

from afterbay_connector.credit import CreditError, CreditPage
from afterbay_connector.rendezvous import tokenizer_path, write
from afterbay_connector.settings import Refused

from . import rendezvous, workers
from .settings import Settings
from .wire import BATCH_OUTPUTS

logger = logging.getLogger("afterbay.sglang")

_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_TOKENIZER_ROUTER = "sglang.srt.managers.multi_tokenizer_mixin.MultiTokenizerRouter"
_DETOKENIZER = "sglang.srt.managers.detokenizer_manager.DetokenizerManager"
# The attribute of a reader that holds its page, so that both live equally long.
_PAGE = "_afterbay_credit_page"


def hooks(settings: Settings) -> List[Tuple[str, str, Any]]:
    directory = settings.credit

    # The page opens before the constructor binds the reader's socket. A connected sender therefore finds the
    # new generation.
    def before_detokenizer(reader: Any, server_args: Any, *_args: Any, **_kwargs: Any) -> None:
        setattr(reader, _PAGE, _open(directory, "detokenizer", _is_detokenizer_worker(server_args)))

    def before_tokenizer(reader: Any, server_args: Any, port_args: Any, *_args: Any, **_kwargs: Any) -> None:
        page = _take_number(settings, server_args, port_args) if _is_tokenizer_worker(reader) else None
        setattr(reader, _PAGE, page or _open(directory, "tokenizer", _is_tokenizer_worker(reader)))

    def before_router(reader: Any, server_args: Any, *_args: Any, **_kwargs: Any) -> None:
        workers.router_starts()
        setattr(reader, _PAGE, _open(directory, "tokenizer", shared=False))

    def after_detokenizer(_result: Any, reader: Any, server_args: Any, *_args: Any, **_kwargs: Any) -> None:
        _describe(getattr(reader, _PAGE), server_args)

    return [
        (f"{_TOKENIZER}.__init__", "BEFORE", before_tokenizer),
        (f"{_TOKENIZER}._handle_batch_output", "AROUND", count_when_handled),
        (f"{_TOKENIZER_ROUTER}.__init__", "BEFORE", before_router),
        (f"{_TOKENIZER_ROUTER}._distribute_result_to_workers", "AROUND", count_when_handled),
        (f"{_DETOKENIZER}.__init__", "BEFORE", before_detokenizer),
        (f"{_DETOKENIZER}.__init__", "AFTER", after_detokenizer),
        (f"{_DETOKENIZER}.event_loop", "AROUND", count_in_loop),
        (f"{_DETOKENIZER}.multi_http_worker_event_loop", "AROUND", count_in_loop),
    ]


def count_when_handled(original: Callable[..., Any], reader: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a handler of one message, async or not, and count the message if it is a batch."""
    page = getattr(reader, _PAGE, None)
    if page is None or not _is_batch(message):
        return original(reader, message, *args, **kwargs)
    counted_later = False
    try:
        result = original(reader, message, *args, **kwargs)
        counted_later = inspect.isawaitable(result)
        return _awaited(page, result) if counted_later else result
    finally:
        if not counted_later:
            page.finished()


async def _awaited(page: CreditPage, handling: Any) -> Any:
    try:
        return await handling
    finally:
        page.finished()


def count_in_loop(original: Callable[..., Any], reader: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a loop that receives, dispatches and sends. A frame is finished when the loop asks for the next one."""
    page = getattr(reader, _PAGE, None)
    if page is not None:
        loop = _CountedLoop(page, reader.recv_from_scheduler, reader._request_dispatcher)
        reader.recv_from_scheduler = loop
        reader._request_dispatcher = loop.dispatch
    return original(reader, *args, **kwargs)


class _CountedLoop:
    """Replaces the reader's socket and its dispatcher."""

    def __init__(self, page: CreditPage, socket: Any, dispatcher: Callable[[Any], Any]):
        self._page = page
        self._socket = socket
        self._dispatcher = dispatcher
        self._unfinished = False

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        self._finish()
        return self._socket.recv(*args, **kwargs)

    def recv_pyobj(self, *args: Any, **kwargs: Any) -> Any:
        self._finish()
        return self._socket.recv_pyobj(*args, **kwargs)

    def dispatch(self, message: Any) -> Any:
        self._unfinished = _is_batch(message)
        try:
            return self._dispatcher(message)
        except BaseException:
            # The process ends with this frame. It counts as finished, so that the next reader does not get
            # it.
            self._finish()
            raise

    def _finish(self) -> None:
        if self._unfinished:
            self._unfinished = False
            self._page.finished()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def _open(directory: str, name: str, shared: bool) -> Optional[CreditPage]:
    try:
        page = CreditPage(directory, name, shared)
    except (CreditError, OSError) as error:
        logger.error("afterbay: this %s counts no finished frames: %s", name, error)
        return None
    logger.info("afterbay: this %s counts finished frames in %s", name, page.path)
    return page


def _is_batch(message: Any) -> bool:
    return type(message).__name__ in BATCH_OUTPUTS


def _take_number(settings: Settings, server_args: Any, port_args: Any) -> Optional[CreditPage]:
    """Give one of several tokenizers the socket and the page that Afterbay uses. None if Afterbay does not send to it."""
    facts = rendezvous.Facts.of(types.SimpleNamespace(server_args=server_args), port_args)
    if facts.mode == "normal" and rendezvous.text_leg(facts, settings)[0] is None:
        return None
    planned, _ = workers.planned(facts, settings)
    if workers.is_engines_own():
        if planned:
            _check_attached()
        return None
    return workers.take_number(settings, port_args, planned) if planned else None


def _check_attached() -> None:
    try:
        workers.check_attached()
    except Refused as refused:
        raise SystemExit(f"afterbay_sglang: {refused}") from refused


def _describe(page: Optional[CreditPage], server_args: Any) -> None:
    """Write the path of the tokenizer's files beside the page, for an Afterbay without a rendezvous file.

    Call it after the reader has loaded its tokenizer: before that the files may be missing.
    """
    if page is not None:
        name = getattr(server_args, "tokenizer_path", None) or getattr(server_args, "model_path", None)
        where = tokenizer_path(name, getattr(server_args, "revision", None))
        write(f"{page.path}.json", {"format": 1, "pid": os.getpid(), "tokenizer_path": where})


def _is_tokenizer_worker(reader: Any) -> bool:
    """Return whether the reader is a TokenizerWorker (--tokenizer-worker-num), which gets only its own requests' rows."""
    return any(kind.__name__ == "TokenizerWorker" for kind in type(reader).__mro__)


def _is_detokenizer_worker(server_args: Any) -> bool:
    """Return whether the detokenizer is behind a MultiDetokenizerRouter (--detokenizer-worker-num) and gets a share."""
    return getattr(server_args, "detokenizer_worker_num", 1) > 1
