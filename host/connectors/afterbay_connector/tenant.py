"""Puts the tenant of a request into the request's id, where a rule of Afterbay finds it.

The id is the only thing of a request that every engine keeps up to its output. This module must not know any engine.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Optional

from .settings import Refused

VARIABLE = "AFTERBAY_TENANT"
# Between the tenant and the rest of an id.
MARK = "~"
# Other values are no tenant. The last character differs from the one before the id in vLLM's `chatcmpl-ID`.
_TENANT = re.compile(r"[0-9A-Za-z_.@:-]{0,63}[0-9A-Za-z_]")


@dataclass(frozen=True)
class TenantSource:
    """The place in an HTTP request that names the tenant."""

    header: Optional[str]  # None: OpenAI's field `user`

    @classmethod
    def parse(cls, value: Optional[str]) -> Optional["TenantSource"]:
        if not value:
            return None
        kind, _, name = value.partition(":")
        if value == "user" or (kind == "header" and re.fullmatch(r"[0-9A-Za-z-]+", name)):
            return cls(name or None)
        raise Refused(f'{VARIABLE} "{value}": must be user or header:NAME, like header:X-Tenant')

    def of(self, headers: Any, user: Optional[str]) -> str:
        """Return the tenant, or an empty text."""
        value = headers.get(self.header) if self.header else user
        return value if value and _TENANT.fullmatch(value) else ""


def with_tenant(tenant: str, request_id: str) -> str:
    """Every id gets the mark, so that no client without a tenant can write one into its id."""
    return f"{tenant}{MARK}{request_id}"
