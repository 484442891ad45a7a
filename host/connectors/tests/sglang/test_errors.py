"""The status of an abort is what SGLang's servers of OpenAI's API look for."""
from http import HTTPStatus

import pytest

from afterbay_sglang import errors


def status_after(reason):
    out = {"meta_info": {"finish_reason": reason}}
    result = errors.with_status(lambda *args: args, "manager", out, "state", True)
    assert result == ("manager", out, "state", True)
    return out["meta_info"]["finish_reason"].get("status_code")


def test_the_status_of_an_error_becomes_what_the_server_looks_for():
    status = status_after({"type": "abort", "message": "late", "status_code": 504})
    assert isinstance(status, HTTPStatus) and status == 504


@pytest.mark.parametrize("reason", [{"type": "stop", "matched": 2}, {"type": "abort", "status_code": None}, {"type": "abort", "status_code": 299}])
def test_other_reasons_stay_as_they_are(reason):
    before = dict(reason)
    status_after(reason)
    assert reason == before
