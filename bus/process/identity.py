"""Talks to the disk and to chance: ids that are made once.

A node id is made at a node's first start and kept in its state folder, and so is its owner's
token; a boot id is new for every process.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from bus.wire.ids import Boot, NodeId

FILE, TOKEN_FILE = "node-id", "http-token"


def new_boot() -> Boot:
    """Return a fresh boot id, 8 hexadecimal digits."""
    return Boot(secrets.token_hex(4))


def new_name(prefix: str) -> str:
    """Return a fresh short name such as `inst-4f1c9a02` (for instances, commands)."""
    return f"{prefix}-{secrets.token_hex(4)}"


def node_id(state: Path) -> NodeId:
    """Return this node's id, from `<state>/node-id`; made there at the first call."""
    return NodeId(_made_once(state / FILE, lambda: f"n{secrets.token_hex(5)}"))


def http_token(state: Path) -> str:
    """Return what HTTP asks this node's owner for, from `<state>/http-token`, which others cannot
    read; made there at the first call."""
    return _made_once(state / TOKEN_FILE, lambda: f"sk-{secrets.token_urlsafe(32)}")


def known_http_token(state: Path) -> str | None:
    """Return what HTTP takes from the owner of the node whose state this is; None where no node was
    ever started, or where others may read it."""
    path = state / TOKEN_FILE
    is_private = path.exists() and not path.stat().st_mode & 0o077
    return (_known(path) or None) if is_private else None


def new_api_key() -> str:
    """Return a fresh API key of 256 bits, to be shown once."""
    return f"sk-shoal-{secrets.token_urlsafe(32)}"


def _made_once(path: Path, make: Callable[[], str]) -> str:
    """Return the word in a file, a new one where there is none.

    The processes of a node start together: the file has its name only once it has its content,
    so that none of them reads an empty one. One that a power cut left empty is made again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = _known(path)
        if not known:
            known = make()
            draft = path.with_name(f"{path.name}.draft")
            draft.unlink(missing_ok=True)
            with open(draft, "x", opener=_private) as file:
                file.write(f"{known}\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
    return known


def known_node_id(state: Path) -> NodeId | None:
    """Return the id of the node whose state this is; None where no node was ever started."""
    return NodeId(_known(state / FILE)) or None


def _known(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
