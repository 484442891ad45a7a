"""Finds the front end that parses tool calls in a process of its own, which a connector's hooks do not reach.

Rows of tool calls must then stay single. The engine's first process looks, and an environment variable tells the processes that it starts.
This module must not know any engine.
"""
from __future__ import annotations

import os
import sys
from typing import Mapping, Optional

# The variable with the front end's name.
_PARSED_BY = "AFTERBAY_TOOL_CALLS_PARSED_BY"


def find(front_ends: Mapping[str, str]) -> None:
    """Remember the front end for all processes of the engine, by the package that starts the engine for it. Call it in the first process."""
    for package, name in front_ends.items():
        if package in sys.modules:
            os.environ[_PARSED_BY] = name


def single_calls(own: Optional[str] = None) -> Optional[str]:
    """Return the reason why rows of tool calls must stay single for this engine's clients, or None. `own` is the engine's own such front end."""
    name = own or os.environ.get(_PARSED_BY)
    return f"{name} parses tool calls, and some of its parsers need single tokens" if name else None
