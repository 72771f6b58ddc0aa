"""Talks to the disk: whom a switchboard has met, and whom the operator let go.

A JSON list, one row for each node: its addresses, or that it is forgotten. A file that cannot be
read is said once and then replaced: it is a convenience, seeds do without it.
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
    """Peers that can be dialled, and nodes that are refused."""

    known: tuple[KnownPeer, ...] = ()
    forgotten: frozenset[NodeId] = frozenset()


class PeerMemory:
    """One file, written whole or not at all, and only when something changed."""

    def __init__(self, file: Path, log: Log) -> None:
        self._file = file
        self._log = log
        self.kept = self._read()

    def keep(self, now: Remembered) -> None:
        """Remember this from now on."""
        if now == self.kept:
            return
        self.kept = now
        rows: list[dict[str, Any]] = [
            {"node": one.node, "addresses": list(one.addresses)} for one in now.known
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
            known = tuple(KnownPeer.model_validate(r) for r in rows if not r.get("forgotten"))
        except FileNotFoundError:
            return Remembered()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            why = str(error)[:200]
            self._log.warning("cannot read the saved list of peers", file=str(self._file), why=why)
            return Remembered()
        return Remembered(known, gone)
