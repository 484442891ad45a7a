"""`python -m afterbay_sglang`: checks whether SGLang would call the connector in this environment.

Prints one JSON line. If the connector would not run, prints the reason too and exits with 1. This module checks SGLang's
version and plugin filter and the connector's settings. It imports neither SGLang nor torch, so that it answers at once.
"""
from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
from typing import Mapping, Optional

from afterbay_connector import __version__
from afterbay_connector.settings import Refused

from .settings import Settings

# The first version that loads plugins of the group sglang.srt.plugins.
SGLANG_MIN = (0, 5, 11)


def refusal(sglang: Optional[str], env: Mapping[str, str]) -> Optional[str]:
    if sglang is None:
        return "SGLang is not installed for this Python"
    numbers = tuple(int(number) for number in re.findall(r"\d+", sglang)[:3])
    if numbers < SGLANG_MIN:
        return f"SGLang {sglang} has no plugins, the connector needs >= {'.'.join(map(str, SGLANG_MIN))}"
    allowed = env.get("SGLANG_PLUGINS", "")
    if allowed and "afterbay" not in [name.strip() for name in allowed.split(",")]:
        return f'SGLANG_PLUGINS "{allowed}" leaves the connector out: add afterbay to the list'
    try:
        Settings.from_environment(env)
    except Refused as refused:
        return str(refused)
    return None


def main() -> int:
    try:
        sglang = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        sglang = None
    why = refusal(sglang, os.environ)
    print(json.dumps({"connector": __version__, "sglang": sglang, "works": why is None, "why": why}))
    if why:
        print(f"afterbay_sglang: {why}", file=sys.stderr)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
