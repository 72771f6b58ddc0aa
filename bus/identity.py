"""Talks to the disk and to chance: ids that are made once.

A node id is made at a node's first start and kept in its state folder; a boot id is new
for every process.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from bus.ids import Boot, NodeId


def new_boot() -> Boot:
    """A fresh boot id, 8 hexadecimal digits."""
    return Boot(secrets.token_hex(4))


def new_name(prefix: str) -> str:
    """A fresh short name such as `inst-4f1c9a02` (for instances, commands)."""
    return f"{prefix}-{secrets.token_hex(4)}"


def node_id(state: Path) -> NodeId:
    """This node's id, from `<state>/node-id`; made there at the first call."""
    path = state / "node-id"
    state.mkdir(parents=True, exist_ok=True)
    try:
        with open(path, "x") as file:
            file.write(f"n{secrets.token_hex(5)}\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass
    return NodeId(path.read_text().strip())
