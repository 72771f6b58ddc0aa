"""The base type of all messages: frozen, with fixed fields, tagged by `kind`.

Pure. Unknown fields and unknown kinds are refused. A new field needs a default and a new protocol
version.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

PROTOCOL_MIN = 1
PROTOCOL_MAX = 16
"""The highest version of the protocol. A process reads the versions up to it from processes of its
own node. To other nodes a build speaks only its highest version, because all nodes get the same
published bytes."""


class Message(BaseModel):
    """A value that may cross a wire. A subclass that is sent alone has a `kind`."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
