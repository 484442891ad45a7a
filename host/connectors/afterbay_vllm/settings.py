"""The settings, read from the environment and validated. This module must not know vLLM's classes."""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Mapping, Optional, Tuple

from afterbay_connector import capability
from afterbay_connector.request_id import LEASE_MAX, IdParts
from afterbay_connector.settings import Refused, check_endpoint, fill

_VARIABLES = ("AFTERBAY_INGRESS", "AFTERBAY_RENDEZVOUS", "AFTERBAY_CREDIT", "AFTERBAY_ABORT")


@dataclass(frozen=True)
class Settings:
    """Endpoints are in the order of vLLM's API servers, one for each."""

    ingress: Tuple[str, ...]  # of Afterbay's PULLs
    rendezvous: Optional[str]  # the file that an EngineCore writes for each API server; may contain {client}
    credit: Optional[str]  # the directory of the API servers' pages
    abort: Tuple[str, ...]  # of Afterbay's ROUTERs for aborts
    ids: Optional[IdParts] = None  # the parts of an HTTP request that its id gets
    clients_key: Optional[str] = None  # the file with the secret of clients' tokens

    @classmethod
    def from_environment(cls, env: Optional[Mapping[str, str]] = None) -> Optional["Settings"]:
        """Return None if no variable is set. An empty variable counts as unset."""
        env = os.environ if env is None else env
        ingress, rendezvous, credit, abort = (env.get(name) or None for name in _VARIABLES)
        text_ingress = env.get("AFTERBAY_TEXT_INGRESS")
        ids, clients_key = IdParts.parse(env), capability.key_file(env)
        if not (ingress or rendezvous or credit or abort or text_ingress or ids or clients_key):
            return None
        if text_ingress:
            raise Refused(f'AFTERBAY_TEXT_INGRESS "{text_ingress}": vLLM has no second leg, its API server makes the text itself')
        of_http = ids.variable() if ids else capability.VARIABLE
        for name, value in (("AFTERBAY_RENDEZVOUS", rendezvous), ("AFTERBAY_ABORT", abort), (of_http, env.get(of_http))):
            if value and not ingress:
                raise Refused(f'{name} "{value}" needs AFTERBAY_INGRESS, the endpoint that Afterbay listens on')
        if (ids or clients_key) and env.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
            raise Refused(f"{of_http}: the Rust front end (VLLM_USE_RUST_FRONTEND) loads no plugins")
        if ids and ids.lease and not abort:
            raise Refused(f"{LEASE_MAX} needs AFTERBAY_ABORT, the endpoint by which Afterbay ends a request when its lease is over")
        ingresses, aborts = (_endpoints(name, value) for name, value in (("AFTERBAY_INGRESS", ingress), ("AFTERBAY_ABORT", abort)))
        if aborts and len(aborts) != len(ingresses):
            raise Refused(f'AFTERBAY_ABORT "{abort}": has {len(aborts)} endpoints, and AFTERBAY_INGRESS has {len(ingresses)}')
        if rendezvous:
            filled = fill("AFTERBAY_RENDEZVOUS", rendezvous, client=0)
            if len(ingresses) > 1 and filled == rendezvous:
                raise Refused(f'AFTERBAY_RENDEZVOUS "{rendezvous}": must contain {{client}}, because AFTERBAY_INGRESS has {len(ingresses)} endpoints')
        return cls(ingresses, rendezvous, credit, aborts, ids, clients_key)

    def file(self, client: int) -> Optional[str]:
        """The rendezvous file of an API server."""
        return self.rendezvous and fill("AFTERBAY_RENDEZVOUS", self.rendezvous, client=client)

    def page(self, client: int) -> str:
        """The name of an API server's credit page in its directory."""
        return f"api-server-{client}"


def _endpoints(variable: str, value: Optional[str]) -> Tuple[str, ...]:
    """A comma between endpoints. None may stand twice: its stream is of one API server."""
    endpoints = tuple(endpoint.strip() for endpoint in value.split(",")) if value else ()
    for number, endpoint in enumerate(endpoints):
        check_endpoint(variable, endpoint)
        if endpoint in endpoints[:number]:
            raise Refused(f'{variable} "{value}": has {endpoint} twice, must be one endpoint for each API server')
    return endpoints
