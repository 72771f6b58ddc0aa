"""Talks to the disk: the origin of a model's folder, recorded when the folder was made.

`.shoal-origin.json` is beside the weights of a model that shoal fetched or made. It has the way in
which the model came (`how`), the nodes or the repository (`sources`), its commit (`revision`), and
the hash of each file by path (`files`). A hash has 64 hexadecimal digits (SHA-256), or 40 (Git's
SHA-1 of a blob, which a hub lists for small files). The file is hidden, so other nodes never copy
it. A model folder without this file was added by a person.
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
    """How and from where a model came to this disk. `files` are the hashes of its files, in
    hexadecimal."""

    how: ModelOrigin = "put"
    sources: tuple[str, ...] = ()
    revision: str = ""
    files: Mapping[str, str] = {}


def origin_of(folder: Path) -> Origin:
    """Return the origin of the model in a folder. If none was recorded, the model was added by a
    person."""
    try:
        content = json_object(folder / ORIGIN_FILE)
    except (OSError, ValueError, RecursionError):
        return Origin()
    how: Any = content.get("how")
    sources, files = content.get("sources", []), content.get("files", {})
    if how not in get_args(ModelOrigin) or not isinstance(sources, list):
        return Origin()
    named = tuple(
        str(source)[:SOURCE_CHARACTERS] for source in cast(list[Any], sources)[:MOST_SOURCES]
    )
    hashes = cast(dict[str, Any], files) if isinstance(files, dict) else {}
    file_hashes = {path: value for path, value in hashes.items() if isinstance(value, str)}
    return Origin(how, named, str(content.get("revision", "")), file_hashes)


def note_origin(folder: Path, origin: Origin) -> None:
    """Record the origin of the model in a folder. Raises OSError."""
    content = {**origin._asdict(), "files": dict(origin.files)}
    (folder / ORIGIN_FILE).write_text(json.dumps(content))
