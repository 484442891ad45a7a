"""Puts the tenant and the lease of a request into the request's id, where a rule of Afterbay and the scheduler's connector find them.

The id is the only thing of a request that every engine keeps up to its output. This module must not know any engine.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from .settings import Refused

VARIABLE = "AFTERBAY_TENANT"
LEASE_MAX = "AFTERBAY_LEASE_MAX"
LEASE_DEFAULT = "AFTERBAY_LEASE"
# The header by which a client asks for a lease.
LEASE_HEADER = "x-afterbay-lease"
# Behind the tenant, and behind the lease.
MARK = "~"
# Other values are no tenant. The last character differs from the one before the id in vLLM's `chatcmpl-ID`.
_TENANT = re.compile(r"[0-9A-Za-z_.@:-]{0,63}[0-9A-Za-z_]")
# vLLM puts its own text before the tenant, which has no mark in it.
_LEASE = re.compile(r"[^~]*~lease-([0-9]{1,9})s~")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


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


@dataclass(frozen=True)
class LeaseSource:
    """The leases that requests may have. The engine goes on with such a request after its client has left."""

    max_s: int
    default_s: int = 0  # of a request without the header. 0: none

    @classmethod
    def parse(cls, env: Mapping[str, str]) -> Optional["LeaseSource"]:
        longest, default = (_variable(env, name) for name in (LEASE_MAX, LEASE_DEFAULT))
        if default and not longest:
            raise Refused(f'{LEASE_DEFAULT} "{env[LEASE_DEFAULT]}": needs {LEASE_MAX}, the longest lease')
        return cls(longest, min(default, longest)) if longest else None

    def of(self, headers: Any) -> int:
        """Return the seconds of the lease, or 0 if the request has none."""
        wish = headers.get(LEASE_HEADER)
        return self.default_s if wish is None else min(_seconds(wish) or 0, self.max_s)


@dataclass(frozen=True)
class IdParts:
    """The parts of an HTTP request that its id gets."""

    tenant: Optional[TenantSource] = None
    lease: Optional[LeaseSource] = None

    @classmethod
    def parse(cls, env: Mapping[str, str]) -> Optional["IdParts"]:
        """Return None if no variable is set."""
        found = cls(TenantSource.parse(env.get(VARIABLE)), LeaseSource.parse(env))
        return found if found.tenant or found.lease else None

    def variable(self) -> str:
        """Return the name of a variable that is set."""
        return VARIABLE if self.tenant else LEASE_MAX

    def put(self, request_id: str, headers: Any, user: Optional[str] = None) -> str:
        """Return the id with the parts of its request.

        Every id gets the mark of tenants where there are any, so that no client without a tenant can write one into its id.
        """
        tenant = self.tenant.of(headers, user) if self.tenant else ""
        lease = self.lease.of(headers) if self.lease else 0
        if lease:
            request_id = f"lease-{lease}s{MARK}{request_id}"
        return f"{tenant}{MARK}{request_id}" if self.tenant or lease else request_id


def lease_of(rid: Any) -> Optional[int]:
    """Return the seconds of the lease in a request's id, or None."""
    found = _LEASE.match(rid) if isinstance(rid, str) else None
    return int(found.group(1)) if found else None


def lease_ms(rid: Any) -> Optional[int]:
    """Return the lease for the record of the request with this id, or None."""
    seconds = lease_of(rid)
    return None if seconds is None else seconds * 1000


def _variable(env: Mapping[str, str], name: str) -> int:
    value = env.get(name)
    seconds = _seconds(value) if value else 0
    if seconds is None:
        raise Refused(f'{name} "{value}": must be whole seconds, minutes or hours, like 90s, 10m or 1h')
    return seconds


def _seconds(value: str) -> Optional[int]:
    found = re.fullmatch(r"([0-9]{1,6})([smh])", value)
    return int(found.group(1)) * _SECONDS[found.group(2)] if found else None
