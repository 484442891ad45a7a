"""The rendezvous file as a file: its format, its place, and a name that several engines resolve alike.

Each connector collects the fields that its own README documents. `afterbay run --rendezvous FILE` reads the file.
"""
from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional

FORMAT = 1


def write(path: str, content: Dict[str, Any]) -> None:
    """Write the file atomically, so that no reader sees half of it."""
    path = os.path.abspath(path)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    # The file names sockets, which are of no use to other users, whatever the umask is.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)
        json.dump(content, file, indent=1)
        file.write("\n")
    os.replace(temporary, path)


def tokenizer_path(name: Optional[str], revision: Optional[str] = None) -> Optional[str]:
    """Return the directory of a tokenizer's files: for a name on the Hugging Face hub its directory in the cache, if present."""
    if not name or os.path.exists(name):
        return name and os.path.abspath(name)
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, "tokenizer.json", revision=revision)
    except Exception:  # not installed, or not a name of the hub
        return name
    return os.path.dirname(found) if isinstance(found, str) else name
