"""Talks to the disk and to chance: ids that are made once.

A node id is made at a node's first start and kept in its state folder; a boot id is new
for every process.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

from bus.wire.ids import Boot, NodeId

FILE = "node-id"


def new_boot() -> Boot:
    """Return a fresh boot id, 8 hexadecimal digits."""
    return Boot(secrets.token_hex(4))


def new_name(prefix: str) -> str:
    """Return a fresh short name such as `inst-4f1c9a02` (for instances, commands)."""
    return f"{prefix}-{secrets.token_hex(4)}"


def node_id(state: Path) -> NodeId:
    """Return this node's id, from `<state>/node-id`; made there at the first call.

    The processes of a node start together: the file has its name only once it has its content,
    so that none of them reads an empty one. One that a power cut left empty is made again.
    """
    path = state / FILE
    state.mkdir(parents=True, exist_ok=True)
    with open(state / f"{FILE}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = known_node_id(state)
        if not known:
            known = f"n{secrets.token_hex(5)}"
            draft = path.with_name(f"{FILE}.draft")
            with open(draft, "w") as file:
                file.write(f"{known}\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
    return NodeId(known)


def known_node_id(state: Path) -> NodeId | None:
    """Return the id of the node whose state this is; None where no node was ever started."""
    path = state / FILE
    return NodeId(path.read_text().strip()) or None if path.exists() else None
