"""The shape that every message shares: frozen, closed, tagged by `kind`.

Pure. An unknown field is refused, an unknown kind is refused; a field may be added only
with a default and a new protocol version.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

PROTOCOL_MIN = 1
PROTOCOL_MAX = 13
"""The range of protocol versions that a process reads from others of its own node. To other nodes
a build speaks its highest alone: what is published goes to all of them as the same bytes."""


class Message(BaseModel):
    """A value that may cross a wire. Subclasses that are sent alone carry `kind`."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
