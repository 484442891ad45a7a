"""The environment of vLLM's connector: what is read, what is refused."""
import pytest

from afterbay_connector.settings import Refused
from afterbay_vllm.settings import Settings


def read(**env):
    return Settings.from_environment({f"AFTERBAY_{name.upper()}": value for name, value in env.items()})


def test_nothing_set_asks_for_nothing():
    assert read() is None
    assert read(ingress="", rendezvous="", credit="", abort="", text_ingress="") is None


def test_each_variable_is_read():
    settings = read(ingress="ipc:///a", rendezvous="/r.json", credit="/c", abort="ipc:///b")
    assert settings == Settings(("ipc:///a",), "/r.json", "/c", ("ipc:///b",))
    assert (settings.file(0), settings.page(0)) == ("/r.json", "api-server-0")
    assert read(credit="/c") == Settings((), None, "/c", ())


def test_the_key_of_clients_is_a_file_and_needs_the_python_api_server(clients_key):
    assert read(ingress="ipc:///a", clients_key=clients_key) == Settings(("ipc:///a",), None, None, (), clients_key=clients_key)
    with pytest.raises(Refused, match=f'AFTERBAY_CLIENTS_KEY "{clients_key}" needs AFTERBAY_INGRESS'):
        read(clients_key=clients_key)
    with pytest.raises(Refused, match="AFTERBAY_CLIENTS_KEY: the Rust front end"):
        Settings.from_environment({"AFTERBAY_INGRESS": "ipc:///a", "AFTERBAY_CLIENTS_KEY": clients_key, "VLLM_USE_RUST_FRONTEND": "1"})
    with pytest.raises(Refused, match='AFTERBAY_CLIENTS_KEY "/absent": cannot be read'):
        read(ingress="ipc:///a", clients_key="/absent")


def test_each_api_server_has_its_own_names():
    settings = read(ingress="ipc:///a, tcp://127.0.0.1:5555", rendezvous="/r-{client}.json", abort="ipc:///b,ipc:///c")
    assert settings.ingress == ("ipc:///a", "tcp://127.0.0.1:5555") and settings.abort == ("ipc:///b", "ipc:///c")
    assert [settings.file(client) for client in (0, 1)] == ["/r-0.json", "/r-1.json"]


@pytest.mark.parametrize(
    "words, env",
    [
        ("AFTERBAY_TEXT_INGRESS .*vLLM has no second leg", dict(ingress="ipc:///a", text_ingress="ipc:///t")),
        ("AFTERBAY_RENDEZVOUS .*needs AFTERBAY_INGRESS", dict(rendezvous="/r")),
        ("AFTERBAY_ABORT .*needs AFTERBAY_INGRESS", dict(abort="ipc:///b")),
        ("AFTERBAY_ABORT .*has 1 endpoints, and AFTERBAY_INGRESS has 2", dict(ingress="ipc:///a,ipc:///b", abort="ipc:///c")),
        ("AFTERBAY_INGRESS .*has ipc:///a twice", dict(ingress="ipc:///a,ipc:///a")),
        ("AFTERBAY_INGRESS .*must begin with ipc:// or tcp://", dict(ingress="/a")),
        ('AFTERBAY_INGRESS "": must begin with', dict(ingress="ipc:///a,")),
        ("must contain {client}, because AFTERBAY_INGRESS has 2 endpoints", dict(ingress="ipc:///a,ipc:///b", rendezvous="/r.json")),
        ("the only placeholder is {client}", dict(ingress="ipc:///a", rendezvous="/r-{dp_rank}.json")),
    ],
)
def test_a_contradiction_is_refused_with_the_variable_and_the_value(words, env):
    with pytest.raises(Refused, match=words):
        read(**env)
