"""Talks to the disk: stores the peers of this node's switchboard, and the nodes that the operator
removed with `shoal nodes forget`.

The file is a JSON list with a row for each node: its addresses, or that it is forgotten. A file
that can't be read is logged once and then replaced. A node can do without the file, because the
addresses in its settings lead to the cluster as well.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bus.process.logs import Log
from bus.wire.ids import NodeId
from bus.wire.messages.peers import KnownPeer


@dataclass(frozen=True, slots=True)
class Remembered:
    """Peers to dial, and nodes to refuse."""

    peers: tuple[KnownPeer, ...] = ()
    forgotten: frozenset[NodeId] = frozenset()


class PeerMemory:
    """The file of remembered peers. It is written as a whole, and only if something has changed."""

    def __init__(self, file: Path, log: Log) -> None:
        self._file = file
        self._log = log
        self.saved = self._read()

    def keep(self, now: Remembered) -> None:
        """Save these peers and nodes, if they have changed."""
        if now == self.saved:
            return
        self.saved = now
        rows: list[dict[str, Any]] = [
            {"node": peer.node, "addresses": list(peer.addresses)} for peer in now.peers
        ]
        rows += [{"node": node, "forgotten": True} for node in sorted(now.forgotten)]
        fresh = self._file.with_suffix(".new")
        try:
            fresh.write_text(json.dumps(rows, indent=1))
            os.replace(fresh, self._file)
        except OSError as error:
            self._log.warning("cannot save the list of peers", why=str(error))

    def _read(self) -> Remembered:
        try:
            rows: Any = json.loads(self._file.read_text())
            gone = frozenset(NodeId(row["node"]) for row in rows if row.get("forgotten"))
            peers = tuple(KnownPeer.model_validate(r) for r in rows if not r.get("forgotten"))
        except FileNotFoundError:
            return Remembered()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            why = str(error)[:200]
            self._log.warning("cannot read the saved list of peers", file=str(self._file), why=why)
            return Remembered()
        return Remembered(peers, gone)
