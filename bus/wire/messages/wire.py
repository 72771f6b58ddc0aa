"""The base type of all messages: frozen, with fixed fields, tagged by `kind`.

Pure. Unknown fields and unknown kinds are refused. A new field needs a default and a new protocol
version.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

PROTOCOL_MIN = 1
PROTOCOL_MAX = 23
"""The highest version of the protocol. A process reads the versions up to it from processes of its
own node. To other nodes a build speaks only its highest version, because all nodes get the same
published bytes."""


class Message(BaseModel):
    """A value that may cross a wire. A subclass that is sent by itself has a `kind`; others are
    parts of messages.

    pydantic builds the validator of a type at its first use, because a command and a runner need
    only some of them. The zygote calls `build_validators` before it forks services.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), defer_build=True
    )


def build_validators(message: type[Message] = Message) -> None:
    """Build the validators of all imported types now, once for all processes that are forked
    later."""
    message.model_rebuild()
    for subclass in message.__subclasses__():
        build_validators(subclass)
