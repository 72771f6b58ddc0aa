"""Talks to the disk: where a model's folder came from, as it was noted when the folder was made.

`.shoal-origin.json` lies beside the weights of a model that shoal fetched or made: `how`, the nodes
or the repository (`sources`), and the SHA-256 of its files as
they were then, as far as it is known (`files`, by path). It is
hidden, and so never given to other nodes. A folder without it was put there by a person.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, get_args

from bus.wire.cards import ModelOrigin
from worker.models.files.headers import json_object

ORIGIN_FILE = ".shoal-origin.json"
MOST_SOURCES, SOURCE_CHARACTERS = 16, 200


class Origin(NamedTuple):
    """Where a model came from."""

    how: ModelOrigin = "put"
    sources: tuple[str, ...] = ()


def origin_of(folder: Path) -> Origin:
    """Return where the model in a folder came from: put there, where it does not say."""
    try:
        said = json_object(folder / ORIGIN_FILE)
        how, sources = said["how"], said.get("sources", [])
    except (OSError, ValueError, KeyError, RecursionError):
        return Origin()
    if how not in get_args(ModelOrigin) or not isinstance(sources, list):
        return Origin()
    named = tuple(str(one)[:SOURCE_CHARACTERS] for one in sources[:MOST_SOURCES])  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    return Origin(how, named)


def note_origin(
    folder: Path, how: ModelOrigin, sources: Iterable[str], files: Mapping[str, str]
) -> None:
    """Note in a folder where its model comes from. Raises OSError."""
    said = {"how": how, "sources": list(sources), "files": dict(files)}
    (folder / ORIGIN_FILE).write_text(json.dumps(said))
