"""A capability: a token that opens one name until a time, as `host/operation/http/src/capability.rs` makes and checks it.

`EXPIRY.MAC`: the Unix time in seconds as hexadecimal digits, and the HMAC-SHA256 of `PURPOSE\\nEXPIRY\\nNAME` as base64 for URLs.
A token for one purpose opens nothing for another. This module must not know what a name stands for.
"""
from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from typing import Mapping, Optional, Sequence

from .settings import Refused

VARIABLE = "AFTERBAY_CLIENTS_KEY"
# A client reads a request's stream, and Afterbay migrates a request.
READ, MIGRATE = "afterbay", "afterbay migration"
# Fewest and most bytes of a secret, and the secrets that one file has at most: the one that signs, and an earlier one.
SECRET_BYTES = (32, 4096)
SECRETS_MAX = 2
_FORM = re.compile(r"([0-9a-f]{1,16})\.[0-9A-Za-z_-]{43}")


class KeyFileError(Exception):
    """The file has no good secret. The text is the rest of a sentence that begins with the file's name."""


def key_file(env: Mapping[str, str]) -> Optional[str]:
    """Return the file with the secrets, or None. The engine must not start with a file that signs nothing."""
    file = env.get(VARIABLE) or None
    if file:
        try:
            secrets(file)
        except KeyFileError as why:
            raise Refused(f'{VARIABLE} "{file}": {why}') from why
    return file


def secrets(file: str) -> Sequence[bytes]:
    """Read the secrets of a file, a line each. The first signs."""
    least, most = SECRET_BYTES
    try:
        # Checked first, because opening a FIFO waits for a writer.
        if os.path.exists(file) and not os.path.isfile(file):
            raise KeyFileError("is not a file")
        with open(file, "rb") as opened:
            text = opened.read(SECRETS_MAX * (most + 2)).decode()
    except (OSError, ValueError) as error:
        raise KeyFileError(f"cannot be read: {error}") from error
    found = [line.strip().encode() for line in text.split("\n") if line.strip()]
    if not 0 < len(found) <= SECRETS_MAX:
        raise KeyFileError(f"has {len(found)} secrets, must be 1 to {SECRETS_MAX}, a line each")
    for secret in found:
        if not least <= len(secret) <= most:
            raise KeyFileError(f"has a secret of {len(secret)} bytes, must be {least} to {most}")
    return found


def mint(secret: bytes, purpose: str, name: str, expires_unix_s: int) -> str:
    mac = hmac.new(secret, f"{purpose}\n{expires_unix_s:x}\n{name}".encode(), hashlib.sha256).digest()
    return f"{expires_unix_s:x}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def wrong(known: Sequence[bytes], purpose: str, name: str, token: str, now_unix_s: float) -> Optional[str]:
    """Return the reason why a token does not open the name now, or None. The time that it takes does not depend on the secrets."""
    form = _FORM.fullmatch(token)
    expires = int(form.group(1), 16) if form else 0
    if not form or not any([hmac.compare_digest(mint(secret, purpose, name, expires), token) for secret in known]):
        return "the token is not for this request"
    return "the token has expired" if expires < int(now_unix_s) else None
