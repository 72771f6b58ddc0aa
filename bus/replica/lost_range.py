"""Which places of the log a damaged journal has lost, and the name of the file that is kept for it.

Pure. The file lies in the journal's folder until a person has looked at it and removes it. So do
other damaged files of the state, as `<name>.damaged`; `damage_words` says what each means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"events-(\d{12})-(\d{12}|end)-[0-9a-f]{8}\.damaged")


@dataclass(frozen=True, slots=True)
class LostRange:
    """The indexes `first` to `last`, both included; `last` None where nothing says how far the
    log went."""

    first: int
    last: int | None

    @property
    def text(self) -> str:
        """Return the range as people read it."""
        if self.last is None:
            return f"{self.first} and all later ones"
        return f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"

    def file_name(self, checksum: int) -> str:
        """Return the name of the damaged file, which has this checksum: the same file has the same
        name each time."""
        last = "end" if self.last is None else f"{self.last:012d}"
        return f"events-{self.first:012d}-{last}-{checksum:08x}.damaged"


def range_of(file_name: str) -> LostRange | None:
    """Return what a damaged file of this name has lost; None for the name of any other file."""
    found = _NAME.fullmatch(file_name)
    if found is None:
        return None
    return LostRange(int(found[1]), None if found[2] == "end" else int(found[2]))


def damage_words(path: str) -> tuple[str, str]:
    """Return what is wrong where a damaged file was kept at this path, and what to do."""
    name = path.rpartition("/")[2]
    lost = range_of(name)
    if lost is not None:
        return (
            f"the journal was damaged on this node's disk: events {lost.text} are lost here",
            "events that other nodes have are restored automatically; repeat the other changes, "
            f"check the disk, and remove {path}",
        )
    of = name.removesuffix(".damaged")
    return (
        f"the state file {of} of this node was damaged on disk",
        f"{_MADE_ANEW.get(of, 'a new one is made')}; check the disk, and remove {path}",
    )


_MADE_ANEW = {
    "term": "with voters, this node does not vote until it has the whole log of a leader",
    "api-keys": "a new one is made from the journal",
}
