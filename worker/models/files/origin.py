"""Talks to the disk: where a model's folder came from, as it was noted when the folder was made.

`.shoal-origin.json` lies beside the weights of a model that shoal fetched or made: `how`, the nodes
or the repository (`sources`), the commit of that (`revision`), and the hash of each file by its
path (`files`): 64 digits of SHA-256, or 40 of Git's SHA-1 of a blob, as a hub lists small files. It
is hidden, and so never given to other nodes. A folder without it was put there by a person.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from bus.wire.cards import ModelOrigin
from bus.wire.messages.weights import ORIGIN_FILE
from worker.models.files.headers import json_object

MOST_SOURCES, SOURCE_CHARACTERS = 16, 200


class Origin(NamedTuple):
    """Where a model came from. `files` are the hashes of its files, in hexadecimal."""

    how: ModelOrigin = "put"
    sources: tuple[str, ...] = ()
    revision: str = ""
    files: Mapping[str, str] = {}


def origin_of(folder: Path) -> Origin:
    """Return where the model in a folder came from: put there, where it does not say."""
    try:
        said = json_object(folder / ORIGIN_FILE)
    except (OSError, ValueError, RecursionError):
        return Origin()
    how: Any = said.get("how")
    sources, files = said.get("sources", []), said.get("files", {})
    if how not in get_args(ModelOrigin) or not isinstance(sources, list):
        return Origin()
    named = tuple(str(one)[:SOURCE_CHARACTERS] for one in cast(list[Any], sources)[:MOST_SOURCES])
    hashes = cast(dict[str, Any], files) if isinstance(files, dict) else {}
    known = {path: value for path, value in hashes.items() if isinstance(value, str)}
    return Origin(how, named, str(said.get("revision", "")), known)


def note_origin(folder: Path, origin: Origin) -> None:
    """Note in a folder where its model comes from. Raises OSError."""
    said = {**origin._asdict(), "files": dict(origin.files)}
    (folder / ORIGIN_FILE).write_text(json.dumps(said))
