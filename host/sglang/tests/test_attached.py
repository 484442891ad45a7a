"""A process that joins an engine: plugins are loaded before the class of its tokenizer is given, and at no other moment."""
import importlib
import sys

import pytest

from afterbay_sglang import attached


@pytest.fixture
def sglang(tmp_path, monkeypatch, no_sglang):
    """An SGLang of the two modules; what happens is kept in order."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    modules = {
        "plugins": "happened = []\ndef load_plugins(): happened.append('plugins')\n",
        "managers/multi_tokenizer_mixin": "def get_tokenizer_worker_class(args):\n    return ('class', args)\n",
    }
    for module, source in modules.items():
        file = tmp_path / "sglang/srt" / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name: importlib.import_module(f"sglang.srt.{name}")


def test_plugins_are_loaded_when_the_class_of_the_tokenizer_is_asked_for_not_before(sglang):
    assert attached.activate() is None, "no platform"
    mixin, happened = sglang("managers.multi_tokenizer_mixin"), sglang("plugins").happened
    assert happened == []
    assert mixin.get_tokenizer_worker_class("args") == ("class", "args")
    assert happened == ["plugins"]


def test_the_finder_is_there_once_and_is_gone_when_it_has_found_its_module(sglang):
    before = list(sys.meta_path)
    attached.activate()
    attached.activate()
    assert len(sys.meta_path) == len(before) + 1
    sglang("managers.multi_tokenizer_mixin")
    assert sys.meta_path == before
