"""The attributes of a request that its engine knows: a message before the request's first row.

It travels on the scheduler's own connection, like the introduction, so that it is never late. Afterbay journals it, forwards it to
nobody, and shows the attributes to plugins, in the journal and in usage. This module must not know any engine. The form is documented
in docs/src/engines/introduction.md.
"""
from __future__ import annotations

import json
from typing import Any, Optional

# The longest message that Afterbay takes, in bytes.
BYTES_MAX = 8 << 10


def encode(rid: str, **attributes: Any) -> Optional[bytes]:
    """Return the message, or None if no attribute has a value or Afterbay would not take it."""
    known = {name: value for name, value in attributes.items() if value is not None}
    message = json.dumps({"afterbay": "attributes", "rid": rid, "attributes": known}, separators=(",", ":")).encode()
    return message if known and len(message) <= BYTES_MAX else None
