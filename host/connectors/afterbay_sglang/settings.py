"""The settings, read from the environment and validated. This module must not know SGLang's classes."""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Mapping, Optional

from afterbay_connector.settings import Refused, check_endpoint, fill as fill_places
from afterbay_connector.tenant import VARIABLE as TENANT, TenantSource

# The values that SGLang's own EnvBool accepts.
_TRUE = ("true", "1", "yes", "y")


@dataclass(frozen=True)
class Settings:
    ingress: Optional[str]  # the endpoint of Afterbay's PULL; may contain {dp_rank}
    rendezvous: Optional[str]  # the file that the scheduler writes; may contain {dp_rank}
    credit: Optional[str]  # the directory of the readers' pages
    text_ingress: Optional[str] = None  # the endpoint of Afterbay's PULL for the detokenizers' output
    abort: Optional[str] = None  # the endpoint of Afterbay's PUSH for aborts; may contain {dp_rank}
    rust_server: bool = False  # SGLang's Rust server reads the output, inside the scheduler's process
    tenant: Optional[TenantSource] = None  # the part of an HTTP request that names its tenant
    engine: Optional[str] = None  # the engine whose messages the launcher has configured Afterbay for

    @classmethod
    def from_environment(cls, env: Optional[Mapping[str, str]] = None) -> Optional["Settings"]:
        """Return None if no variable is set. An empty variable counts as unset."""
        env = os.environ if env is None else env
        ingress = env.get("AFTERBAY_INGRESS") or None
        rendezvous = env.get("AFTERBAY_RENDEZVOUS") or None
        credit = env.get("AFTERBAY_CREDIT") or None
        text_ingress = env.get("AFTERBAY_TEXT_INGRESS") or None
        abort = env.get("AFTERBAY_ABORT") or None
        tenant = TenantSource.parse(env.get(TENANT))
        if not (ingress or rendezvous or credit or text_ingress or abort or tenant):
            return None
        rust_server = env.get("SGLANG_RUST_SERVER", "").lower() in _TRUE
        if rust_server and not (ingress and rendezvous):
            raise Refused(
                "SGLANG_RUST_SERVER is on: this needs AFTERBAY_INGRESS and AFTERBAY_RENDEZVOUS, because Afterbay returns the output to a "
                "socket beside the rendezvous file"
            )
        if rendezvous and not ingress:
            raise Refused(f'AFTERBAY_RENDEZVOUS "{rendezvous}" needs AFTERBAY_INGRESS, the endpoint that Afterbay listens on')
        if text_ingress and not ingress:
            raise Refused(f'AFTERBAY_TEXT_INGRESS "{text_ingress}" needs AFTERBAY_INGRESS for the output of the scheduler')
        if tenant and not ingress:
            raise Refused(f"{TENANT} needs AFTERBAY_INGRESS, the endpoint that Afterbay listens on")
        if tenant and rust_server:
            raise Refused(f"{TENANT}: SGLang's Rust server (SGLANG_RUST_SERVER) gives the connector no HTTP request")
        if abort and not ingress:
            raise Refused(f'AFTERBAY_ABORT "{abort}" needs AFTERBAY_INGRESS, the endpoint that Afterbay listens on')
        if ingress:
            check_endpoint("AFTERBAY_INGRESS", fill(ingress, 0, "AFTERBAY_INGRESS"))
        if text_ingress:
            # All ranks share one endpoint, because they share the detokenizer.
            if "{" in text_ingress or "}" in text_ingress:
                raise Refused(f'AFTERBAY_TEXT_INGRESS "{text_ingress}": cannot have placeholders, because all ranks share one detokenizer')
            check_endpoint("AFTERBAY_TEXT_INGRESS", text_ingress)
            if text_ingress in (ingress, fill(ingress, 0)):
                raise Refused(f'AFTERBAY_TEXT_INGRESS "{text_ingress}": must differ from AFTERBAY_INGRESS')
        if abort:
            check_endpoint("AFTERBAY_ABORT", fill(abort, 0, "AFTERBAY_ABORT"))
        if rendezvous:
            fill(rendezvous, 0, "AFTERBAY_RENDEZVOUS")
        return cls(ingress, rendezvous, credit, text_ingress, abort, rust_server, tenant, env.get("AFTERBAY_ENGINE") or None)


def fill(text: str, dp_rank: int, variable: str = "value") -> str:
    return fill_places(variable, text, dp_rank=dp_rank)
