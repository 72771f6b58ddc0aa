"""Changes that clients make on nodes: pulls, copies, removals, cards, keep-alive, cancels and
captures.

A module finds the nodes that are concerned, asks their workers or gateways, and reports each node's
answer. It uses the nodes' reports (readings) and calls between gateways, and knows nothing of
client requests. Each name in `__all__` is a module or a package, which is imported when it is first
used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.control import (
        cancels,
        captures,
        card_files,
        keep_alive,
        model_files,
        pulling,
        removals,
    )

__all__ = [
    "cancels",
    "captures",
    "card_files",
    "keep_alive",
    "model_files",
    "pulling",
    "removals",
]
