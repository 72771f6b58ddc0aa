"""The replies of several nodes to one call. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from bus.calls.failures import CallFailed
from bus.wire.ids import NodeId
from bus.wire.messages.wire import Message

R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class Gathered(Generic[R]):
    """The replies by node, and the errors of the nodes without a reply."""

    replies: dict[NodeId, R]
    failures: dict[NodeId, CallFailed]

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the names of the nodes without a reply, each with the reason. Nodes that the
        cluster does not have are left out."""
        return tuple(
            missing_of(error) for error in self.failures.values() if error.why != "unknown"
        )


def missing_of(error: CallFailed) -> str:
    """Return the name of a node that did not reply, with the reason: `name (reason)`."""
    return f"{error.node} ({error.why})"
