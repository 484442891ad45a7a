"""Checks that the settings of every connector share."""
from __future__ import annotations

import os
from typing import Any

# sun_path has 108 bytes on Linux, including the final zero.
IPC_PATH_BYTES_MAX = 107


class Refused(Exception):
    """The engine must not start with these settings, for the reason in the text."""


def fill(variable: str, text: str, **places: Any) -> str:
    """Replace each {name} by its value. Any other brace is a mistake that would become part of a name."""
    filled = text
    for name, value in places.items():
        filled = filled.replace(f"{{{name}}}", str(value))
    if "{" in filled or "}" in filled:
        raise Refused(f'{variable} "{text}": the only placeholder is {" or ".join(f"{{{name}}}" for name in places)}')
    return filled


def check_endpoint(variable: str, endpoint: str) -> None:
    scheme, separator, rest = endpoint.partition("://")
    if not separator or scheme not in ("ipc", "tcp"):
        raise Refused(f'{variable} "{endpoint}": must begin with ipc:// or tcp://')
    if scheme == "ipc":
        if not rest:
            raise Refused(f'{variable} "{endpoint}": has no path')
        if len(os.fsencode(rest)) > IPC_PATH_BYTES_MAX:
            raise Refused(f'{variable} "{endpoint}": path is {len(os.fsencode(rest))} bytes, the limit is {IPC_PATH_BYTES_MAX}')
        return
    host, _, port = rest.rpartition(":")
    if not host or host == "*" or not port.isdigit() or not 0 < int(port) < 65536:
        raise Refused(f'{variable} "{endpoint}": must be tcp://HOST:PORT, an address that the engine can connect to')
