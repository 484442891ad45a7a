"""`python -m afterbay_vllm`: checks whether vLLM would call the connector in this environment.

Prints one JSON line. If the connector would not run, prints the reason too and exits with 1. This module checks vLLM's version and
plugin filter and the connector's settings. It imports neither vLLM nor torch, so that it answers at once.
"""
from __future__ import annotations

import json
import os
import sys
from typing import Mapping, Optional

from afterbay_connector import __version__
from afterbay_connector.settings import Refused

from .settings import Settings
from .versions import refusal as version_refusal, vllm_version


def refusal(vllm: Optional[str], env: Mapping[str, str]) -> Optional[str]:
    why = version_refusal(vllm)
    if why:
        return why
    allowed = env.get("VLLM_PLUGINS")
    if allowed is not None and "afterbay" not in allowed.split(","):
        return f'VLLM_PLUGINS "{allowed}" leaves the connector out: add afterbay to the list, without a space'
    try:
        Settings.from_environment(env)
    except Refused as refused:
        return str(refused)
    return None


def main() -> int:
    vllm = vllm_version()
    why = refusal(vllm, os.environ)
    print(json.dumps({"connector": __version__, "vllm": vllm, "works": why is None, "why": why}))
    if why:
        print(f"afterbay_vllm: {why}", file=sys.stderr)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
