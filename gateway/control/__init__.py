"""Changes that clients make on nodes: pulls, copies, removals, cards, keep-alive,
cancels and captures.

A module finds the nodes that are concerned, asks their workers or gateways, and reports each
node's answer. It knows readings and calls between gateways, and no request. The door names modules
and rooms, which load alone; a room inside has its own door.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.control import (
        call_faults,
        cancels,
        captures,
        card_files,
        keep_alive,
        model_files,
        pulling,
        removals,
    )

__all__ = [
    "call_faults",
    "cancels",
    "captures",
    "card_files",
    "keep_alive",
    "model_files",
    "pulling",
    "removals",
]
