"""The addresses that this node currently dials, and which node answered at each of them.

Pure: time arrives as `now`. Dialling and hanging up are actions of the shell.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.membership.member_types import SILENT_S, Action, Dial, HangUp
from bus.wire.ids import NodeId


@dataclass(slots=True)
class PeerLine:
    """One dialled address. `node`: the node that is expected to answer at it, or that has
    answered."""

    address: str
    node: NodeId | None
    opened_at: float
    said_at: float | None = None
    heard_at: float | None = None
    refused: str = ""

    def is_silent(self, now: float) -> bool:
        """Return whether there was no answer for `SILENT_S`."""
        since = self.opened_at if self.heard_at is None else self.heard_at
        return now - since >= SILENT_S

    def is_answered(self, now: float) -> bool:
        """Return whether a node answered at this address recently and welcomed this node."""
        return self.heard_at is not None and not self.refused and not self.is_silent(now)


class LineTable(dict[str, PeerLine]):
    """The lines (dialled connections) by address. `leads` maps each address to the last node that
    answered there, also after the line was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.leads: dict[str, NodeId] = {}

    def to(self, node: NodeId) -> list[PeerLine]:
        """Return the lines to a node, oldest first."""
        return [line for line in self.values() if line.node == node]

    def refusal_by(self, node: NodeId) -> str:
        """Return the text with which a node refused this one on any line (dialled connection); ""
        if it did not."""
        refusals = (line.refused for line in self.values() if self.leads.get(line.address) == node)
        return next((words for words in refusals if words), "")

    def dial(self, address: str, node: NodeId | None, now: float) -> list[Action]:
        """Open a line to an address."""
        self[address] = PeerLine(address, node, now)
        return [Dial(address, node)]

    def hang_up(self, address: str) -> list[Action]:
        """Close the line to an address, if there is one."""
        return [] if self.pop(address, None) is None else [HangUp(address)]

    def hang_up_on(self, node: NodeId) -> list[Action]:
        """Close all lines to a node."""
        return [action for line in self.to(node) for action in self.hang_up(line.address)]
