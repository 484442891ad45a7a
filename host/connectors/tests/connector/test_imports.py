"""Tests the change of a module at its import."""
import importlib
import sys

import pytest

from afterbay_connector.imports import after_import


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes the module `afterbay_late`, and imports it at a call."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "afterbay_late.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda: importlib.import_module("afterbay_late")
    sys.modules.pop("afterbay_late", None)


def test_a_module_is_changed_after_it_has_run_and_is_not_loaded_for_that(module):
    changes = []
    after_import("afterbay_late", lambda late: changes.append(late.value))
    assert "afterbay_late" not in sys.modules and changes == []
    module()
    assert changes == [1]


def test_every_change_of_a_module_is_made_and_the_finders_are_gone(module):
    before, changes = list(sys.meta_path), []
    for number in range(3):
        after_import("afterbay_late", lambda _, number=number: changes.append(number))
    module()
    assert sorted(changes) == [0, 1, 2] and sys.meta_path == before


def test_a_loaded_module_is_changed_at_once(module):
    module()
    changes = []
    after_import("afterbay_late", changes.append)
    assert changes == [sys.modules["afterbay_late"]]


def test_a_change_that_refuses_stops_the_import(module):
    def refuse(_):
        raise SystemExit("refused")

    after_import("afterbay_late", refuse)
    with pytest.raises(SystemExit, match="refused"):
        module()
