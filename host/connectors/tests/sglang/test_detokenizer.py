"""Tests how a detokenizer's process loads plugins, with fakes of SGLang's engine."""
import pickle

import pytest

from afterbay_sglang import detokenizer

ENGINE = """
class Engine:
    def __init__(self):
        self._launch_subprocesses(run_detokenizer_process_func=self.run_detokenizer_process_func)
"""


@pytest.fixture
def installed(tmp_path, monkeypatch, no_sglang):
    """A fake SGLang of two modules with the given sources."""

    def put(detokenizer_manager, engine):
        for module, source in (("managers/detokenizer_manager", detokenizer_manager), ("entrypoints/engine", engine)):
            file = tmp_path / "sglang/srt" / f"{module}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))

    return put


def launch(cls, server_args, run_scheduler_process_func, run_detokenizer_process_func, port_args=None):
    return run_scheduler_process_func, run_detokenizer_process_func, port_args


def chosen(*args, **kwargs):
    return (LOADED[:], args, kwargs)


LOADED = []


@pytest.mark.parametrize(
    "manager, engine, loads, hooked",
    [("load_plugins()", ENGINE, True, 0), ("", ENGINE, True, 1), ("", "def _launch_subprocesses(): ...", False, 0)],
    ids=["0.5.22 on", "before", "a version whose process cannot be chosen"],
)
def test_the_function_is_replaced_only_if_needed_and_possible(installed, manager, engine, loads, hooked):
    installed(manager, engine)
    assert (detokenizer.loads_plugins(), len(detokenizer.hooks())) == (loads, hooked)


def test_our_function_can_be_pickled_and_calls_the_chosen_one(fake_modules):
    fake_modules("sglang.srt.managers.detokenizer_manager")
    fake_modules("sglang.srt.plugins", load_plugins=lambda: LOADED.append("plugins"))
    scheduler, ours, ports = detokenizer.launch(launch, "cls", "server_args", run_scheduler_process_func="scheduler", run_detokenizer_process_func=chosen, port_args="ports")
    assert (scheduler, ports) == ("scheduler", "ports"), "all other arguments stay unchanged"
    LOADED.clear()
    assert pickle.loads(pickle.dumps(ours))("server_args", port_args=1) == (["plugins"], ("server_args",), {"port_args": 1})


def test_the_reason_names_the_mode_that_counts():
    assert "--skip-tokenizer-init" in detokenizer.NONE
