"""The environment: what is read, what is refused."""

import socket

import pytest

from afterbay_connector.settings import IPC_PATH_BYTES_MAX, Refused
from afterbay_sglang.settings import Settings, fill


def read(**env):
    return Settings.from_environment(env)


def test_an_abort_endpoint_needs_an_ingress_and_is_checked_as_one():
    asked = {"AFTERBAY_INGRESS": "ipc:///run/a", "AFTERBAY_ABORT": "ipc:///run/abort-{dp_rank}"}
    assert read(**asked) == Settings("ipc:///run/a", None, None, abort="ipc:///run/abort-{dp_rank}")
    with pytest.raises(Refused, match='AFTERBAY_ABORT "ipc:///run/abort" needs AFTERBAY_INGRESS'):
        read(AFTERBAY_ABORT="ipc:///run/abort")
    with pytest.raises(Refused, match=r'AFTERBAY_ABORT "tcp://\*:5555": must be tcp://HOST:PORT'):
        read(**{**asked, "AFTERBAY_ABORT": "tcp://*:5555"})


def test_nothing_set_asks_for_nothing():
    assert read() is None
    assert read(AFTERBAY_INGRESS="", AFTERBAY_RENDEZVOUS="", AFTERBAY_CREDIT="", AFTERBAY_TEXT_INGRESS="") is None
    assert read(AFTERBAY_SGLANG_HOME="/x", AFTERBAY_MODEL="/y") is None


def test_each_variable_is_read():
    settings = read(AFTERBAY_INGRESS="ipc:///run/a-{dp_rank}", AFTERBAY_RENDEZVOUS="/run/r-{dp_rank}.json", AFTERBAY_CREDIT="/dev/shm/c")
    assert settings == Settings("ipc:///run/a-{dp_rank}", "/run/r-{dp_rank}.json", "/dev/shm/c")
    both = read(AFTERBAY_INGRESS="ipc:///run/a-{dp_rank}", AFTERBAY_TEXT_INGRESS="ipc:///run/text")
    assert (both.ingress, both.text_ingress, settings.text_ingress) == ("ipc:///run/a-{dp_rank}", "ipc:///run/text", None)
    assert read(AFTERBAY_CREDIT="/dev/shm/c") == Settings(None, None, "/dev/shm/c")


@pytest.mark.parametrize("value", ["1", "true", "TRUE", "yes", "y"])
@pytest.mark.parametrize("asked", ["AFTERBAY_INGRESS", "AFTERBAY_CREDIT"])
def test_the_rust_server_needs_an_ingress_and_a_rendezvous(asked, value):
    with pytest.raises(Refused, match="SGLANG_RUST_SERVER is on: this needs AFTERBAY_INGRESS and AFTERBAY_RENDEZVOUS"):
        read(**{asked: "ipc:///x", "SGLANG_RUST_SERVER": value})
    both = {"AFTERBAY_INGRESS": "ipc:///x", "AFTERBAY_RENDEZVOUS": "/r.json"}
    assert read(**both, SGLANG_RUST_SERVER=value) == Settings("ipc:///x", "/r.json", None, rust_server=True)


def test_the_rust_server_changes_nothing_if_it_is_off_or_no_variable_is_set():
    assert read(SGLANG_RUST_SERVER="1") is None
    assert read(AFTERBAY_CREDIT="/c", SGLANG_RUST_SERVER="0") == Settings(None, None, "/c")


@pytest.mark.parametrize(
    "endpoint, words",
    [
        ("/run/a", "must begin with ipc:// or tcp://"),
        ("inproc://a", "must begin with ipc:// or tcp://"),
        ("ipc://", "has no path"),
        ("ipc:///" + "a" * IPC_PATH_BYTES_MAX, f"is {IPC_PATH_BYTES_MAX + 1} bytes, the limit is {IPC_PATH_BYTES_MAX}"),
        ("tcp://127.0.0.1", "must be tcp://HOST:PORT"),
        ("tcp://*:5555", "that the engine can connect to"),
        ("tcp://:5555", "must be tcp://HOST:PORT"),
        ("tcp://h:70000", "must be tcp://HOST:PORT"),
        ("ipc:///run/a-{rank}", "the only placeholder is {dp_rank}"),
    ],
)
def test_an_invalid_endpoint_is_refused(endpoint, words):
    with pytest.raises(Refused, match=words):
        read(AFTERBAY_INGRESS=endpoint)


@pytest.mark.parametrize("endpoint", ["ipc:///" + "a" * (IPC_PATH_BYTES_MAX - 1), "ipc://relative", "tcp://127.0.0.1:5555", "tcp://[::1]:5555", "tcp://node-0:65535"])
def test_a_valid_endpoint_is_accepted(endpoint):
    assert read(AFTERBAY_INGRESS=endpoint).ingress == endpoint


def test_the_limit_of_a_path_is_the_kernels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as longest, socket.socket(socket.AF_UNIX) as too_long:
        longest.bind("a" * IPC_PATH_BYTES_MAX)
        with pytest.raises(OSError, match="path too long"):
            too_long.bind("a" * (IPC_PATH_BYTES_MAX + 1))


def test_a_rendezvous_without_an_ingress_is_refused():
    with pytest.raises(Refused, match=r'AFTERBAY_RENDEZVOUS "/r.json" needs AFTERBAY_INGRESS'):
        read(AFTERBAY_RENDEZVOUS="/r.json")


@pytest.mark.parametrize(
    "text, words",
    [
        ("/run/a", "must begin with ipc:// or tcp://"),
        ("ipc:///run/text-{dp_rank}", "cannot have placeholders, because all ranks share one detokenizer"),
        ("ipc:///run/a-0", "must differ from AFTERBAY_INGRESS"),
    ],
)
def test_an_invalid_text_endpoint_is_refused(text, words):
    with pytest.raises(Refused, match=f'AFTERBAY_TEXT_INGRESS "{text}".*{words}'):
        read(AFTERBAY_INGRESS="ipc:///run/a-{dp_rank}", AFTERBAY_TEXT_INGRESS=text)


def test_a_text_leg_without_an_ingress_is_refused():
    with pytest.raises(Refused, match=r'AFTERBAY_TEXT_INGRESS "ipc:///t" needs AFTERBAY_INGRESS'):
        read(AFTERBAY_TEXT_INGRESS="ipc:///t", AFTERBAY_CREDIT="/c")


def test_the_key_of_clients_is_a_file_and_needs_sglangs_python_server(clients_key):
    asked = {"AFTERBAY_INGRESS": "ipc:///a", "AFTERBAY_CLIENTS_KEY": clients_key}
    assert read(**asked) == Settings("ipc:///a", None, None, clients_key=clients_key)
    with pytest.raises(Refused, match="AFTERBAY_CLIENTS_KEY needs AFTERBAY_INGRESS"):
        read(AFTERBAY_CLIENTS_KEY=clients_key)
    with pytest.raises(Refused, match="AFTERBAY_CLIENTS_KEY: SGLang's Rust server"):
        read(**asked, AFTERBAY_RENDEZVOUS="/r", SGLANG_RUST_SERVER="1")
    with pytest.raises(Refused, match='AFTERBAY_CLIENTS_KEY "/absent": cannot be read'):
        read(AFTERBAY_INGRESS="ipc:///a", AFTERBAY_CLIENTS_KEY="/absent")


def test_the_rank_is_filled_in():
    assert fill("ipc:///a-{dp_rank}-{dp_rank}", 3) == "ipc:///a-3-3"
