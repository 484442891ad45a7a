"""Tests when a frame is finished, with fakes of SGLang's readers and of its hooks."""
import asyncio
import functools
import json
import os
import types

import pytest

from afterbay_sglang import readers
from afterbay_sglang.settings import Settings
from test_ingress import PORTS


class Page:
    def __init__(self):
        self.count = 0

    def finished(self):
        self.count += 1


def message(name):
    return type(name, (), {})()


BATCH = message("BatchTokenIDOutput")
BATCHES = [BATCH, message("BatchStrOutput"), message("BatchEmbeddingOutput")]
CONTROL = message("FreezeGCReq")


def hooked(hook, original):
    return functools.wraps(original)(lambda *args, **kwargs: hook(original, *args, **kwargs))


def reader_with(page, **attributes):
    reader = types.SimpleNamespace(**attributes)
    setattr(reader, readers._PAGE, page)
    return reader


def test_the_tokenizers_frame_is_finished_when_its_handling_ends():
    page, during = Page(), []

    async def handle(reader, batch):
        await asyncio.sleep(0)
        during.append(page.count)
        return "handled"

    handler = hooked(readers.count_when_handled, handle)
    for expected, batch in enumerate(BATCHES):
        pending = handler(reader_with(page), batch)
        assert page.count == expected, "a coroutine that did not run finishes nothing"
        assert asyncio.run(pending) == "handled"
    assert during == [0, 1, 2] and page.count == 3


def test_a_frame_is_finished_if_its_handling_raises():
    page = Page()

    async def later(reader, batch):
        raise ValueError("poison")

    def at_once(reader, batch):
        raise ValueError("poison")

    with pytest.raises(ValueError, match="poison"):
        asyncio.run(hooked(readers.count_when_handled, later)(reader_with(page), BATCH))
    with pytest.raises(ValueError, match="poison"):
        hooked(readers.count_when_handled, at_once)(reader_with(page), BATCH)
    assert page.count == 2


def test_a_handler_that_is_not_async_counts_too():
    page = Page()
    assert hooked(readers.count_when_handled, lambda reader, batch: page.count)(reader_with(page), BATCH) == 0
    assert page.count == 1


def test_control_messages_are_not_counted():
    page = Page()
    assert hooked(readers.count_when_handled, lambda reader, received: received)(reader_with(page), CONTROL) is CONTROL
    assert page.count == 0


def test_a_reader_without_a_page_works_unchanged():
    def handle(reader, received):
        return received

    assert hooked(readers.count_when_handled, handle)(types.SimpleNamespace(), BATCH) is BATCH
    assert hooked(readers.count_when_handled, handle)(reader_with(None), BATCH) is BATCH
    loop = reader_with(None, recv_from_scheduler="socket", _request_dispatcher="dispatcher")
    assert hooked(readers.count_in_loop, lambda reader: reader.recv_from_scheduler)(loop) == "socket"


class Detokenizer:
    """SGLang's loop: receive, dispatch, send."""

    def __init__(self, page, messages, handle, method="recv_pyobj"):
        self.page, self.sent, self.log = page, [], []
        setattr(self, readers._PAGE, page)
        self.recv_from_scheduler = self.Socket(self, messages)
        self._request_dispatcher = handle
        self.method = method

    class Socket:
        def __init__(self, owner, messages):
            self.owner, self.messages, self.closed = owner, list(messages), False

        def recv_pyobj(self, flags=0):
            self.owner.log.append((len(self.owner.sent), self.owner.page.count))
            if not self.messages:
                raise EOFError
            return self.messages.pop(0)

        recv = recv_pyobj

    def event_loop(self):
        while True:
            output = self._request_dispatcher(getattr(self.recv_from_scheduler, self.method)(flags=0))
            if output is not None:
                self.sent.append((output, self.page.count))


@pytest.mark.parametrize("method", ["recv_pyobj", "recv"], ids=["pickle", "msgpack"])
def test_the_detokenizers_frame_is_finished_after_its_output_is_sent(method):
    page = Page()
    detokenizer = Detokenizer(page, [BATCH, CONTROL, BATCH], lambda received: None if received is CONTROL else "text", method)
    with pytest.raises(EOFError):
        hooked(readers.count_in_loop, Detokenizer.event_loop)(detokenizer)
    assert [count for _, count in detokenizer.sent] == [0, 1], "not counted before its output is sent"
    assert detokenizer.log == [(0, 0), (1, 1), (1, 1), (2, 2)], "counted when the loop asks for the next frame"
    assert page.count == 2


def test_the_frame_that_ends_the_detokenizer_is_finished():
    page = Page()

    def handle(received):
        raise RuntimeError("poison")

    detokenizer = Detokenizer(page, [BATCH], handle)
    with pytest.raises(RuntimeError, match="poison"):
        hooked(readers.count_in_loop, Detokenizer.event_loop)(detokenizer)
    assert page.count == 1


def test_other_uses_of_the_socket_reach_the_real_one():
    page = Page()
    detokenizer = Detokenizer(page, [], None)
    real = detokenizer.recv_from_scheduler
    hooked(readers.count_in_loop, lambda reader: None)(detokenizer)
    assert detokenizer.recv_from_scheduler is not real and detokenizer.recv_from_scheduler.closed is False


def hook_of(directory, suffix):
    return next(hook for target, _, hook in readers.hooks(Settings("ipc:///a", None, str(directory))) if target.endswith(suffix))


def test_the_page_is_open_before_the_reader_makes_its_socket(tmp_path):
    reader = types.SimpleNamespace()
    assert hook_of(tmp_path, "TokenizerManager.__init__")(reader, types.SimpleNamespace(), "port_args") is None, "the arguments stay unchanged"
    assert getattr(reader, readers._PAGE).path == str(tmp_path / "tokenizer")


def test_only_a_reader_of_whole_frames_gets_the_plain_name(tmp_path):
    class TokenizerManager: ...

    class TokenizerWorker(TokenizerManager): ...

    class OwnWorker(TokenizerWorker): ...

    def opened(reader, suffix, **args):
        hook_of(tmp_path, suffix)(reader, types.SimpleNamespace(**args), types.SimpleNamespace(**PORTS))
        page = getattr(reader, readers._PAGE)
        name = page.path.rsplit("/", 1)[1].split(".")
        page.close()
        return (name[0], len(name) == 1)

    assert opened(TokenizerManager(), "TokenizerManager.__init__") == ("tokenizer", True)
    assert opened(TokenizerWorker(), "TokenizerManager.__init__") == ("tokenizer", False)
    assert opened(OwnWorker(), "TokenizerManager.__init__") == ("tokenizer", False)
    assert opened(types.SimpleNamespace(), "MultiTokenizerRouter.__init__", tokenizer_worker_num=2) == ("tokenizer", True)
    assert opened(types.SimpleNamespace(), "DetokenizerManager.__init__") == ("detokenizer", True)
    assert opened(types.SimpleNamespace(), "DetokenizerManager.__init__", detokenizer_worker_num=1) == ("detokenizer", True)
    assert opened(types.SimpleNamespace(), "DetokenizerManager.__init__", detokenizer_worker_num=2) == ("detokenizer", False)


def test_a_file_beside_the_detokenizers_page_names_its_tokenizer_and_pid(tmp_path):
    hooks = [hook for target, _, hook in readers.hooks(Settings("ipc:///a", None, str(tmp_path))) if target.endswith("DetokenizerManager.__init__")]
    before, after = hooks
    for args, where in (({"model_path": str(tmp_path), "tokenizer_path": None}, str(tmp_path)), ({"tokenizer_path": "no/such-model"}, "no/such-model")):
        reader, server_args = types.SimpleNamespace(), types.SimpleNamespace(**args)
        before(reader, server_args, "port_args")
        assert not (tmp_path / "detokenizer.json").exists(), "the files of the tokenizer may be missing before it is loaded"
        assert after(None, reader, server_args, "port_args") is None
        assert json.loads((tmp_path / "detokenizer.json").read_text()) == {"format": 1, "pid": os.getpid(), "tokenizer_path": where}
        getattr(reader, readers._PAGE).close()
        (tmp_path / "detokenizer.json").unlink()


def test_a_page_that_cannot_open_is_logged_and_the_reader_works(tmp_path, caplog):
    (tmp_path / "tokenizer").write_bytes(b"something else")
    reader = types.SimpleNamespace()
    hook_of(tmp_path, "TokenizerManager.__init__")(reader, types.SimpleNamespace(), "port_args")
    assert getattr(reader, readers._PAGE) is None
    assert "this tokenizer counts no finished frames" in caplog.text and "the file is not a credit page" in caplog.text
