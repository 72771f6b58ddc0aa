"""Talks to the disk: a copy of the API keys outside the log, so that a damaged log cannot open a
node to everyone.

The file has the keys, the log index at which they were valid, and a checksum. It is written before
a change of keys is acknowledged. `returned_keys` is pure: it returns the keys to restore when a
candidate with a possibly incomplete log opens a term. Without a readable file it restores a key
without an owner (`LOST_KEYS`), which keeps every node closed until a person removes it.
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
class StoredKeys:
    """The API keys by id, as of log `index`."""

    index: int
    keys: Mapping[str, ApiKey]


def render_keys(content: StoredKeys) -> bytes:
    """Return the bytes of the file: JSON with a checksum."""
    keys = [key.model_dump(mode="json") for key in content.keys.values()]
    return sealed(json.dumps({"index": content.index, "keys": keys}, separators=(",", ":")))


def parse_keys(data: bytes) -> StoredKeys:
    """Return the keys of a file. Raises Damaged."""
    try:
        content = json.loads(unsealed(data))
        keys = [ApiKey.model_validate(fields) for fields in content["keys"]]
        return StoredKeys(int(content["index"]), {key.id: key for key in keys})
    except (ValueError, TypeError, KeyError, ValidationError) as error:
        raise Damaged("the file does not list API keys") from error


def returned_keys(
    stored: StoredKeys | None, state: ClusterState, *, lost: bool
) -> list[ApiKeyAdded | ApiKeyChanged | ApiKeyRemoved]:
    """Return the events that restore the keys of a log.

    `state` is the end of the log. `lost`: the log was damaged or is gone. `stored` is None without
    a readable file. A log that is not lost is trusted, unless it ends before the last change of
    keys.
    """
    if stored is None:
        is_closed = LOST_KEYS.id in state.api_keys
        return [ApiKeyAdded(key=LOST_KEYS)] if lost and not is_closed else []
    if not lost and not keys_are_ahead(stored, state):
        return []
    gone = [ApiKeyRemoved(key_id=key) for key in state.api_keys if key not in stored.keys]
    changed = [key for key in stored.keys.values() if state.api_keys.get(key.id) != key]
    in_log = state.api_keys
    return [
        *gone,
        *(ApiKeyChanged(key=k) if k.id in in_log else ApiKeyAdded(key=k) for k in changed),
    ]


def keys_are_ahead(stored: StoredKeys | None, state: ClusterState) -> bool:
    """Return whether the file was written at a later log index than that of `state`."""
    return stored is not None and stored.index > state.index


class KeysFile:
    """The key file of a running candidate. `content` is None without a readable file."""

    def __init__(self, path: Path, log: Log, files: Files = DISK_FILES) -> None:
        self._path = path
        self._log = log
        self._files = files
        self._sound = True
        self.content = self._read()

    def keep(self, state: ClusterState) -> None:
        """Write the keys of a state to disk if they changed. If that fails the file is removed,
        because no file is safer than an outdated one."""
        stored = self.content
        if stored is not None and (stored.keys is state.api_keys or stored.keys == state.api_keys):
            return
        fresh = StoredKeys(state.index, state.api_keys)
        try:
            replace_file(self._path, render_keys(fresh), self._files, PRIVATE)
        except OSError as error:
            self._failed(error)
            return
        self.content, self._sound = fresh, True

    def _failed(self, error: OSError) -> None:
        self.content = None
        if self._sound:
            self._sound = False
            self._log.critical(
                "cannot save the API keys beside the log; free disk space",
                file=str(self._path),
                error=str(error),
            )
        try:
            self._files.remove(self._path)
        except OSError as left:
            self._log.critical("an outdated API key file could not be removed", error=str(left))

    def _read(self) -> StoredKeys | None:
        try:
            return parse_keys(self._files.read(self._path))
        except FileNotFoundError:
            return None
        except (OSError, Damaged) as error:
            self._log.critical(
                "the API key file is damaged",
                file=str(self._path),
                why=str(error),
                kept=str(keep_aside(self._path, self._files)),
            )
            return None
