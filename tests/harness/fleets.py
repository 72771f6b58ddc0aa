"""Cards of nodes, as a fleet of them would announce."""

from __future__ import annotations

from typing import Any

from bus.wire.cards import NodeCard
from bus.wire.ids import NodeId

NOW_S = 1_800_000_000.0


def card(at_s: float, name: str = "box", node: str = "n1", **more: Any) -> NodeCard:
    """A node's card of that time."""
    return NodeCard(
        **{
            "node": NodeId(node), "name": name, "platform": "linux", "cores": 2, "memory_bytes": 1,
            "backends": ("mlx-cpu",), "mlx_version": "", "shoal_version": "", "slots": 1,
            "announced_at_s": at_s, **more,
        }
    )  # fmt: skip
