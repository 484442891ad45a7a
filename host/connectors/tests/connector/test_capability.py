"""Tests the tokens that open one name until a time. `host/operation/http/src/capability.rs` has the same vector and bounds."""
import pytest

from afterbay_connector import capability
from afterbay_connector.settings import Refused

SECRET = b"0123456789abcdef0123456789abcdef"
MADE = "3e8.uJ7hwxv_4JWYzdA_912skAix1Md1NFS1hwzi1P9Lqcg"


def wrong(token, name="chatcmpl-7", now=0, known=(SECRET,), purpose=capability.READ):
    return capability.wrong(known, purpose, name, token, now)


def test_a_token_opens_its_name_until_its_time_and_nothing_else():
    assert capability.mint(SECRET, capability.READ, "chatcmpl-7", 1000) == MADE
    assert wrong(MADE, now=1000.9) is None
    assert wrong(MADE, now=1001) == "the token has expired"
    assert wrong(MADE, known=[SECRET[::-1], SECRET]) is None, "the earlier secret"
    others = [dict(name="chatcmpl-8"), dict(known=[SECRET[::-1]]), dict(purpose=capability.MIGRATE)]
    assert {wrong(MADE, **other) for other in others} == {"the token is not for this request"}
    for token in (MADE.replace("3e8", "3e9"), "", ".", "3e8.", "3e8.!", MADE[:-1], MADE + "=", "0" + MADE, MADE.replace("u", "é")):
        assert wrong(token) == "the token is not for this request", token


def test_a_token_to_migrate_a_request_reads_nothing():
    made = capability.mint(SECRET, capability.MIGRATE, "cmpl-~7-0-1a2b3c4d", 1000)
    assert made == "3e8.kS5o6dMZgo6wJqeRPFK8sjCSfn-aciq6U_rmQzoZOew"
    assert wrong(made, "cmpl-~7-0-1a2b3c4d", purpose=capability.MIGRATE) is None
    assert wrong(made, "cmpl-~7-0-1a2b3c4d") == "the token is not for this request"


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "has 0 secrets, must be 1 to 2, a line each"),
        ("short", "has a secret of 5 bytes, must be 32 to 4096"),
        ("x" * 4097, "has a secret of 4097 bytes, must be 32 to 4096"),
        ("\n".join([SECRET.decode()] * 3), "has 3 secrets, must be 1 to 2, a line each"),
        (b"\xff" * 40, "cannot be read: "),
    ],
)
def test_a_file_without_a_good_secret_refuses_the_start_with_its_name_and_the_bound(tmp_path, text, why):
    file = tmp_path / "key"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(Refused) as refused:
        capability.key_file({"AFTERBAY_CLIENTS_KEY": str(file)})
    assert str(refused.value).startswith(f'AFTERBAY_CLIENTS_KEY "{file}": {why}')


def test_a_missing_file_and_a_directory_are_refused_and_an_unset_variable_is_none(tmp_path):
    with pytest.raises(Refused, match="/absent\": cannot be read: .*No such file"):
        capability.key_file({"AFTERBAY_CLIENTS_KEY": "/absent"})
    with pytest.raises(Refused, match="is not a file"):
        capability.key_file({"AFTERBAY_CLIENTS_KEY": str(tmp_path)})
    assert capability.key_file({}) is capability.key_file({"AFTERBAY_CLIENTS_KEY": ""}) is None


def test_the_first_secret_of_a_file_signs(tmp_path):
    file = tmp_path / "key"
    file.write_bytes(b"  " + SECRET + b" \r\n\n" + SECRET[::-1])
    assert capability.secrets(capability.key_file({"AFTERBAY_CLIENTS_KEY": str(file)})) == [SECRET, SECRET[::-1]]
