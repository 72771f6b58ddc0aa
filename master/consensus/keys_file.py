"""Talks to the disk: the API keys once more, outside of the log, so that a damaged log cannot open
a node to everyone.

The file has the index at which the keys were as it says, the keys, and a checksum. It is written
before a change of keys is acknowledged. `returned_keys` is pure: what a log that may lack keys is
given back when its candidate opens a term. Without a file that can be read, that is a key without
an owner (`LOST_KEYS`), which keeps every node closed until a person removes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from bus.process.identity import Damaged, sealed, unsealed
from bus.process.logs import Log
from bus.replica.state import ClusterState
from bus.wire.api_keys import LOST_KEYS, ApiKey
from bus.wire.messages.events import ApiKeyAdded, ApiKeyChanged, ApiKeyRemoved
from master.log.files import DISK_FILES, Files, keep_aside, replace_file

PRIVATE = 0o600


@dataclass(frozen=True, slots=True)
class KeptKeys:
    """The API keys by id, as the log had them at `index`."""

    index: int
    keys: Mapping[str, ApiKey]


def render_keys(kept: KeptKeys) -> bytes:
    """Return the file of these keys."""
    keys = [one.model_dump(mode="json") for one in kept.keys.values()]
    return sealed(json.dumps({"index": kept.index, "keys": keys}, separators=(",", ":")))


def parse_keys(data: bytes) -> KeptKeys:
    """Return the keys of a file. Raises Damaged."""
    try:
        found = json.loads(unsealed(data))
        keys = [ApiKey.model_validate(one) for one in found["keys"]]
        return KeptKeys(int(found["index"]), {one.id: one for one in keys})
    except (ValueError, TypeError, KeyError, ValidationError) as error:
        raise Damaged("it does not list API keys") from error


def returned_keys(
    kept: KeptKeys | None, state: ClusterState, *, lost: bool
) -> list[ApiKeyAdded | ApiKeyChanged | ApiKeyRemoved]:
    """Return the events that give a log its keys back. `state` is the end of the log, which is
    `lost` where it was damaged or is gone; `kept` is None where no file could be read. A log that
    is not lost is believed, unless it ends before the last change of keys."""
    if kept is None:
        is_told = LOST_KEYS.id in state.api_keys
        return [ApiKeyAdded(key=LOST_KEYS)] if lost and not is_told else []
    if not lost and not keys_are_ahead(kept, state):
        return []
    gone = [ApiKeyRemoved(key_id=one) for one in state.api_keys if one not in kept.keys]
    changed = [one for one in kept.keys.values() if state.api_keys.get(one.id) != one]
    known = state.api_keys
    return [
        *gone,
        *(ApiKeyChanged(key=k) if k.id in known else ApiKeyAdded(key=k) for k in changed),
    ]


def keys_are_ahead(kept: KeptKeys | None, state: ClusterState) -> bool:
    """Return whether keys were kept of a log that went on behind this state."""
    return kept is not None and kept.index > state.index


class KeysFile:
    """The file of a running candidate. `kept` is what it holds; None: no file that can be read."""

    def __init__(self, path: Path, log: Log, files: Files = DISK_FILES) -> None:
        self._path = path
        self._log = log
        self._files = files
        self._sound = True
        self.kept = self._read()

    def keep(self, state: ClusterState) -> None:
        """Put the keys of a state on the disk, where they have changed. A file that cannot be
        written is removed: none is safer than one that is out of date."""
        kept = self.kept
        if kept is not None and (kept.keys is state.api_keys or kept.keys == state.api_keys):
            return
        fresh = KeptKeys(state.index, state.api_keys)
        try:
            replace_file(self._path, render_keys(fresh), self._files, PRIVATE)
        except OSError as error:
            self._failed(error)
            return
        self.kept, self._sound = fresh, True

    def _failed(self, error: OSError) -> None:
        self.kept = None
        if self._sound:
            self._sound = False
            self._log.critical(
                "could not keep the API keys beside the log: free some disk space",
                file=str(self._path),
                error=str(error),
            )
        try:
            self._files.remove(self._path)
        except OSError as left:
            self._log.critical("an old file of API keys is left", error=str(left))

    def _read(self) -> KeptKeys | None:
        try:
            return parse_keys(self._files.read(self._path))
        except FileNotFoundError:
            return None
        except (OSError, Damaged) as error:
            self._log.critical(
                "the file of the API keys is damaged",
                file=str(self._path),
                why=str(error),
                kept=str(keep_aside(self._path, self._files)),
            )
            return None
