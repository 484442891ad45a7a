"""Tests a process that joins an engine: it loads plugins exactly when it asks for the class of its tokenizer."""
import importlib
import sys

import pytest

from afterbay_sglang import attached


@pytest.fixture
def sglang(tmp_path, monkeypatch, no_sglang):
    """A fake SGLang of two modules that records calls in order."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    modules = {
        "plugins": "calls = []\ndef load_plugins(): calls.append('plugins')\n",
        "managers/multi_tokenizer_mixin": "def get_tokenizer_worker_class(args):\n    return ('class', args)\n",
    }
    for module, source in modules.items():
        file = tmp_path / "sglang/srt" / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name: importlib.import_module(f"sglang.srt.{name}")


def test_plugins_are_loaded_when_the_process_asks_for_the_tokenizer_class(sglang):
    assert attached.activate() is None, "this is no platform"
    mixin, calls = sglang("managers.multi_tokenizer_mixin"), sglang("plugins").calls
    assert calls == []
    assert mixin.get_tokenizer_worker_class("args") == ("class", "args")
    assert calls == ["plugins"]


def test_the_finder_is_installed_once_and_removed_after_its_module(sglang):
    before = list(sys.meta_path)
    attached.activate()
    attached.activate()
    assert len(sys.meta_path) == len(before) + 1
    sglang("managers.multi_tokenizer_mixin")
    assert sys.meta_path == before
