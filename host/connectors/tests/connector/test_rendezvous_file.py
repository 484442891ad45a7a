"""Tests the rendezvous file as a file."""
import json
import os

from afterbay_connector import rendezvous


def test_the_file_is_replaced_atomically(tmp_path):
    path = tmp_path / "made" / "r.json"
    rendezvous.write(str(path), {"a": 1})
    first = path.stat().st_ino
    rendezvous.write(str(path), {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert path.stat().st_ino != first, "a new file replaces the old one, which is never written to"
    assert [entry.name for entry in path.parent.iterdir()] == ["r.json"]


def test_the_file_and_its_directory_are_private_under_any_umask(tmp_path):
    path = tmp_path / "made" / "r.json"
    before = os.umask(0)
    try:
        rendezvous.write(str(path), {"a": 1})
    finally:
        os.umask(before)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
