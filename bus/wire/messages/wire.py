"""The shape that every message shares: frozen, closed, tagged by `kind`.

Pure. Unknown fields and unknown kinds are refused. A new field needs a default and a new protocol
version.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

PROTOCOL_MIN = 1
PROTOCOL_MAX = 14
"""The protocol versions that a process reads from processes of its own node. To other nodes a build
speaks only its highest, because all of them get the same published bytes."""


class Message(BaseModel):
    """A value that may cross a wire. A subclass that is sent alone has a `kind`."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
