"""The introduction: the first message of a scheduler's output, in which the connector says what sends it and how its frames are made.

Afterbay journals the message, forwards it to nobody, and reads the frames behind it by it. The fields come from the engine's own
classes at run time, so a release that Afterbay does not know is read right. This module must not know any engine. The form is
documented in docs/src/engines/introduction.md.
"""
from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, List, Optional

from .settings import Refused

FORMAT = 1


def fields(kind: Any) -> Optional[List[List[Any]]]:
    """Return [NAME] or [NAME, DEFAULT] of each field of a class, in order. None if it has no fields that are sent by position or name."""
    names = getattr(kind, "__struct_encode_fields__", None)
    if names is not None:
        defaults = list(getattr(kind, "__struct_defaults__", ()))
        required = len(names) - len(defaults)
        return [[name] + _default(defaults[at - required] if at >= required else None, at >= required) for at, name in enumerate(names)]
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        found = []
        for field in dataclasses.fields(kind):
            made = field.default_factory is not dataclasses.MISSING
            default = field.default_factory if made else field.default
            found.append([field.name] + _default(default, default is not dataclasses.MISSING))
        return found
    return None


def _default(value: Any, is_there: bool) -> List[Any]:
    """Return the default in a list, or an empty list if there is none that JSON can say."""
    value = getattr(value, "factory", value)
    if value in (list, tuple, set):
        value = []
    elif value is dict:
        value = {}
    if not is_there or not (value is None or isinstance(value, (bool, int, float, str, list, dict))):
        return []
    return [value]


def describe(engine: str, version: Optional[str], classes: Dict[str, Any], **facts: Any) -> Dict[str, Any]:
    known = {name: fields(kind) for name, kind in classes.items()}
    return {
        "afterbay": "introduction",
        "format": FORMAT,
        "engine": engine,
        "version": version,
        "classes": {name: found for name, found in known.items() if found},
        **facts,
    }


def check(content: Dict[str, Any], needed: Dict[str, List[str]]) -> None:
    """Refuse an engine whose classes lack a field that Afterbay reads, and name the field."""
    for name, fields_needed in needed.items():
        names = [field[0] for field in content["classes"].get(name, [])]
        missing = [field for field in fields_needed if field not in names]
        if missing:
            raise Refused(
                f"{content['engine']} {content['version'] or '(version unknown)'}: its class {name} has no {', '.join(missing)}, which Afterbay "
                f"reads; found {', '.join(names) or 'no fields'}. Unset AFTERBAY_* to run without Afterbay"
            )


def summary(content: Dict[str, Any]) -> str:
    """Return what was found in the engine's classes, for the log of a version that nobody has tried."""
    return ", ".join(f"{name} has {len(found)} fields" for name, found in content["classes"].items())


def encode(content: Dict[str, Any]) -> bytes:
    """Return the message. No frame of an engine begins like it."""
    return json.dumps(content, separators=(",", ":")).encode()
