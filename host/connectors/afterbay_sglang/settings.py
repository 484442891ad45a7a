"""The settings, read from the environment and validated. This module must not know SGLang's classes."""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Mapping, Optional

from afterbay_connector import capability
from afterbay_connector.request_id import LEASE_MAX, IdParts
from afterbay_connector.settings import Refused, check_endpoint, fill as fill_places

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
    ids: Optional[IdParts] = None  # the parts of an HTTP request that its id gets
    clients_key: Optional[str] = None  # the file with the secret of clients' tokens
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
        ids, clients_key = IdParts.parse(env), capability.key_file(env)
        if not (ingress or rendezvous or credit or text_ingress or abort or ids or clients_key):
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
        of_http = ids.variable() if ids else capability.VARIABLE
        if (ids or clients_key) and not ingress:
            raise Refused(f"{of_http} needs AFTERBAY_INGRESS, the endpoint that Afterbay listens on")
        if (ids or clients_key) and rust_server:
            raise Refused(f"{of_http}: SGLang's Rust server (SGLANG_RUST_SERVER) gives the connector no HTTP request")
        if ids and ids.lease and not abort:
            raise Refused(f"{LEASE_MAX} needs AFTERBAY_ABORT, the endpoint by which Afterbay ends a request when its lease is over")
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
        return cls(ingress, rendezvous, credit, text_ingress, abort, rust_server, ids, clients_key, env.get("AFTERBAY_ENGINE") or None)


def fill(text: str, dp_rank: int, variable: str = "value") -> str:
    return fill_places(variable, text, dp_rank=dp_rank)
