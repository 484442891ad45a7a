"""Tests the page's bytes, which are a contract with Afterbay's sender (host/path/sockets)."""
import mmap
import multiprocessing
import os
import signal
import struct
import time

import pytest

from afterbay_connector.credit import PAGE_BYTES, CreditError, CreditPage

FIELDS = ("magic", "version", "pid", "generation", "count", "last_generation", "last_count", "changed_unix_ns", "reader")
spawn = multiprocessing.get_context("spawn")


def read(path):
    raw = path.read_bytes()
    assert len(raw) == PAGE_BYTES
    return dict(zip(FIELDS, struct.unpack("<8sIIQQQQQQ", raw)))


def hold(directory, frames, ready):
    page = CreditPage(directory, "tokenizer")
    for _ in range(frames):
        page.finished()
    ready.send(page.path)
    time.sleep(60)


def holder(directory, frames):
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=hold, args=(str(directory), frames, theirs))
    process.start()
    return process, ours.recv()


def test_a_new_page_is_generation_one_and_has_counted_nothing(tmp_path):
    CreditPage(str(tmp_path / "made"), "tokenizer")
    assert read(tmp_path / "made/tokenizer") == dict(
        magic=b"ABCREDIT", version=1, pid=os.getpid(), generation=1, count=0, last_generation=0, last_count=0, changed_unix_ns=0, reader=2
    )


def test_each_finished_frame_adds_one(tmp_path):
    page = CreditPage(str(tmp_path), "tokenizer")
    before = time.time_ns()
    for count in range(1, 301):
        page.finished()
        assert read(tmp_path / "tokenizer")["count"] == count
    assert before <= read(tmp_path / "tokenizer")["changed_unix_ns"] <= time.time_ns()


def test_the_next_generation_stores_the_last_count(tmp_path):
    for generation, frames in ((1, 3), (2, 5), (3, 0)):
        page = CreditPage(str(tmp_path), "tokenizer")
        now = read(tmp_path / "tokenizer")
        assert (now["generation"], now["count"], now["changed_unix_ns"]) == (generation, 0, 0)
        for _ in range(frames):
            page.finished()
        page.close()
    assert (now["last_generation"], now["last_count"]) == (2, 5)


@pytest.mark.parametrize("name, reader", [("detokenizer", 1), ("tokenizer", 2), ("api-server-0", 2)])
def test_a_page_names_its_reader_even_if_the_previous_one_did_not(tmp_path, name, reader):
    CreditPage(str(tmp_path), name).close()
    assert read(tmp_path / name)["reader"] == reader
    (tmp_path / name).write_bytes(page_of(4, 10, 3, 6))
    CreditPage(str(tmp_path), name)
    assert (read(tmp_path / name)["generation"], read(tmp_path / name)["reader"]) == (5, reader)


def test_a_numbered_page_names_a_tokenizer(tmp_path):
    CreditPage(str(tmp_path), "tokenizer", numbers=2)
    assert read(tmp_path / "tokenizer-0")["reader"] == 2


def page_of(generation, count, last_generation, last_count):
    return struct.pack("<8sIIQQQQQQ", b"ABCREDIT", 1, 77, generation, count, last_generation, last_count, 9, 0)


@pytest.mark.parametrize(
    "left",
    [page_of(4, 10, 3, 6), page_of(4, 10, 4, 6), page_of(4, 10, 4, 10), page_of(4, 0, 4, 10)],
    ids=["before the hand-over", "after last_generation", "after last_count", "after the count"],
)
def test_a_kill_during_the_hand_over_loses_no_count(tmp_path, left):
    (tmp_path / "tokenizer").write_bytes(left)
    CreditPage(str(tmp_path), "tokenizer")
    now = read(tmp_path / "tokenizer")
    assert (now["generation"], now["count"], now["last_generation"], now["last_count"]) == (5, 0, 4, 10)


def test_a_generation_without_a_count_hands_over_0(tmp_path):
    (tmp_path / "tokenizer").write_bytes(page_of(4, 0, 3, 6))
    CreditPage(str(tmp_path), "tokenizer")
    now = read(tmp_path / "tokenizer")
    assert (now["generation"], now["last_generation"], now["last_count"]) == (5, 4, 0)


def test_a_killed_reader_leaves_its_count_to_the_next(tmp_path):
    process, path = holder(tmp_path, 7)
    dead = process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert path == str(tmp_path / "tokenizer")
    assert read(tmp_path / "tokenizer")["pid"] == dead
    page = CreditPage(str(tmp_path), "tokenizer")
    now = read(tmp_path / "tokenizer")
    assert page.path == path
    assert (now["generation"], now["count"], now["last_generation"], now["last_count"], now["pid"]) == (2, 0, 1, 7, os.getpid())


def test_a_second_process_gets_a_page_with_its_pid(tmp_path):
    process, _ = holder(tmp_path, 1)
    try:
        page = CreditPage(str(tmp_path), "tokenizer")
        page.finished()
        page.finished()
        assert page.path == str(tmp_path / f"tokenizer.{os.getpid()}")
        assert read(tmp_path / f"tokenizer.{os.getpid()}")["count"] == 2
        assert read(tmp_path / "tokenizer")["count"] == 1
    finally:
        process.kill()
        process.join()


def test_a_reader_of_a_share_never_takes_the_plain_name(tmp_path):
    page = CreditPage(str(tmp_path), "detokenizer", shared=True)
    assert page.path == str(tmp_path / f"detokenizer.{os.getpid()}")
    assert [entry.name for entry in tmp_path.iterdir()] == [f"detokenizer.{os.getpid()}"]


def test_a_third_page_in_one_process_is_refused(tmp_path):
    pages = [CreditPage(str(tmp_path), "tokenizer"), CreditPage(str(tmp_path), "tokenizer")]
    with pytest.raises(CreditError, match="is locked by another reader"):
        CreditPage(str(tmp_path), "tokenizer")
    del pages


def test_a_forked_child_neither_counts_nor_holds_the_lock(tmp_path):
    """An engine's processes fork helpers. A helper that outlives its parent must not lock the page."""
    page = CreditPage(str(tmp_path), "tokenizer")
    page.finished()
    ready_out, ready_in = os.pipe()
    child = os.fork()
    if child == 0:
        page.finished()
        os.write(ready_in, b"x")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(ready_out, 1)
        assert read(tmp_path / "tokenizer")["count"] == 1
        page.finished()
        assert read(tmp_path / "tokenizer")["count"] == 2, "the parent still counts"
        page.close()
        assert CreditPage(str(tmp_path), "tokenizer").path == str(tmp_path / "tokenizer")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


HALF_MADE = struct.pack("<8sIIQQ", b"", 1, 77, 1, 9).ljust(PAGE_BYTES, b"\0")


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"\0" * PAGE_BYTES, HALF_MADE], ids=["empty", "cut", "zero", "no magic yet"])
def test_a_page_whose_maker_died_is_made_again(tmp_path, content):
    (tmp_path / "tokenizer").write_bytes(content)
    CreditPage(str(tmp_path), "tokenizer")
    now = read(tmp_path / "tokenizer")
    assert (now["magic"], now["generation"], now["count"], now["last_generation"]) == (b"ABCREDIT", 1, 0, 0)


@pytest.mark.parametrize(
    "content, words",
    [
        (b"#!/bin/sh\nexit 0\n", "the file is not a credit page"),
        (b"ABCREDIT" + b"\x01\0\0\0" + b"x" * 60, "the file is not a credit page"),
        ((b"ABCREDIT" + struct.pack("<I", 2)).ljust(PAGE_BYTES, b"\0"), "has version 2, this connector writes 1"),
    ],
)
def test_a_file_that_is_not_a_page_is_refused_and_unchanged(tmp_path, content, words):
    (tmp_path / "tokenizer").write_bytes(content)
    with pytest.raises(CreditError, match=words):
        CreditPage(str(tmp_path), "tokenizer")
    assert (tmp_path / "tokenizer").read_bytes() == content


def test_a_refused_file_is_not_locked(tmp_path):
    (tmp_path / "tokenizer").write_bytes(b"not a page")
    for _ in range(2):
        with pytest.raises(CreditError, match="the file is not a credit page"):
            CreditPage(str(tmp_path), "tokenizer")


def count_up(directory, frames, begin):
    page = CreditPage(directory, "tokenizer")
    begin.send(None)
    for _ in range(frames):
        page.finished()


def test_a_count_is_never_torn(tmp_path):
    """Reads during 200,000 counts, across the carries of the lower bytes, only ever grow."""
    frames = 200_000
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=count_up, args=(str(tmp_path), frames, theirs))
    process.start()
    ours.recv()
    last, reads = 0, 0
    # Afterbay reads by one load of eight bytes, as here. The kernel may copy a file's bytes one by one.
    with (
        open(tmp_path / "tokenizer", "rb", buffering=0) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as page,
        memoryview(page) as view,
        view[:64].cast("Q") as words,
    ):
        while last < frames:
            count = words[3]
            assert last <= count <= frames
            last, reads = count, reads + 1
            assert process.is_alive() or last == frames or int.from_bytes(os.pread(file.fileno(), 8, 24), "little") == frames
    process.join()
    assert reads > 100
