"""The credit page: 64 bytes in which a reader counts the frames that it has finished.

This module writes the page's bytes and holds its lock. The connector of an engine decides when a frame is finished.
Afterbay's sender reads the count: it limits the frames in flight and sends uncounted frames again after a reader's end.

Little endian:
     0  8  magic "ABCREDIT", written last when a page is new
     8  4  u32 version, 1
    12  4  u32 pid of the reader
    16  8  u64 generation: 1 for the first reader process of this file, +1 for each later one
    24  8  u64 count of frames finished by this generation
    32  8  u64 last_generation: the previous generation, 0 for none
    40  8  u64 last_count: its final count
    48  8  u64 unix nanoseconds of the last change of `count`, 0 if this generation has counted nothing
    56  8  u64 reader: 1 a detokenizer, 2 a tokenizer or an API server, whose parsers of tool calls get single tokens
"""
from __future__ import annotations

import fcntl
import mmap
import os
import sys
import time
from typing import List, Optional, Tuple

MAGIC = b"ABCREDIT"
VERSION = 1
PAGE_BYTES = 64
# Indices of 8-byte words. Word 1 has version and pid.
_MAGIC, _VERSION_AND_PID, _GENERATION, _COUNT, _LAST_GENERATION, _LAST_COUNT, _CHANGED_UNIX_NS, _READER = range(8)
# The kind of reader by the name of its page.
_READERS = {"detokenizer": 1, "tokenizer": 2, "api-server": 2}


class CreditError(Exception):
    pass


class CreditPage:
    """One reader's page, locked until this process ends in any way."""

    def __init__(self, directory: str, name: str, shared: bool = False, numbers: int = 0):
        """Open `directory/name`, or `directory/name.PID` if another process has locked it.

        A `shared` reader gets only a share of the frames and always opens `directory/name.PID`, so that the plain name
        never has the count of a share. If `numbers` is given, the reader opens the first unlocked page of
        `directory/name-0` to `directory/name-(numbers - 1)`.
        """
        if sys.byteorder != "little":
            raise CreditError(f"credit page {name}: needs a little-endian machine")
        self.path, self._descriptor = _claim(directory, _candidates(name, shared, numbers))
        try:
            self._map = _map(self._descriptor, self.path)
        except BaseException:
            os.close(self._descriptor)
            raise
        # Native 8-byte stores at aligned addresses are atomic: a reader of the file sees the old or the new
        # value.
        self._words = memoryview(self._map).cast("Q")
        self._begin_generation(_READERS[name.rstrip("-0123456789")])
        self._count = 0
        # A forked child must not count here, and must not hold the lock after this process has died.
        os.register_at_fork(after_in_child=self.close)

    def finished(self) -> None:
        """Count a finished frame."""
        words = self._words
        if words is None:
            return
        self._count += 1
        words[_COUNT] = self._count
        words[_CHANGED_UNIX_NS] = time.time_ns()

    def close(self) -> None:
        """Close the page and leave its content to the next generation."""
        words, self._words = self._words, None
        if words is not None:
            words.release()
            self._map.close()
            os.close(self._descriptor)

    def _begin_generation(self, reader: int) -> None:
        words = self._words
        version_and_pid = VERSION | os.getpid() << 32
        if self._map[: len(MAGIC)] != MAGIC:
            words[_VERSION_AND_PID] = version_and_pid
            words[_GENERATION] = 1
            words[_READER] = reader
            words[_MAGIC] = int.from_bytes(MAGIC, "little")
            return
        # The order matters: while last_generation == generation, the page is being handed over. A process
        # that was killed in between has either saved the count before zeroing it, or has done neither.
        was_handed_over = words[_LAST_GENERATION] == words[_GENERATION]
        words[_LAST_GENERATION] = words[_GENERATION]
        if words[_COUNT] or not was_handed_over:
            words[_LAST_COUNT] = words[_COUNT]
        words[_COUNT] = 0
        words[_CHANGED_UNIX_NS] = 0
        words[_READER] = reader
        words[_VERSION_AND_PID] = version_and_pid
        words[_GENERATION] += 1


def _candidates(name: str, shared: bool, numbers: int) -> List[str]:
    if numbers:
        return [f"{name}-{number}" for number in range(numbers)]
    own = f"{name}.{os.getpid()}"
    return [own] if shared else [name, own]


def _claim(directory: str, names: List[str]) -> Tuple[str, int]:
    os.makedirs(directory, exist_ok=True)
    for name in names:
        path = os.path.join(directory, name)
        descriptor = _lock(path)
        if descriptor is not None:
            return path, descriptor
    raise CreditError(f"credit page {os.path.join(directory, names[-1])}: is locked by another reader")


def _lock(path: str) -> Optional[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _map(descriptor: int, path: str) -> mmap.mmap:
    """Map a page of this version, or make a new one in a file that is empty or has no magic because its maker died."""
    found = os.pread(descriptor, PAGE_BYTES + 1, 0)
    magic = found[: len(MAGIC)]
    if len(found) <= PAGE_BYTES and not magic.strip(b"\0"):
        os.pwrite(descriptor, bytes(PAGE_BYTES), 0)
    elif len(found) != PAGE_BYTES or magic != MAGIC:
        raise CreditError(f"credit page {path}: the file is not a credit page")
    elif int.from_bytes(found[8:12], "little") != VERSION:
        raise CreditError(f"credit page {path}: has version {int.from_bytes(found[8:12], 'little')}, this connector writes {VERSION}")
    return mmap.mmap(descriptor, PAGE_BYTES)
