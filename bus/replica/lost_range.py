"""The log indexes that a damaged journal has lost, and the name of its damaged file.

Pure. The damaged file stays in the journal's folder until a person has checked and deleted it.
Other damaged state files are kept in the same way, as `<name>.damaged`. `damage_words` explains
each of them to the operator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"events-(\d{12})-(\d{12}|end)-[0-9a-f]{8}\.damaged")


@dataclass(frozen=True, slots=True)
class LostRange:
    """The indexes `first` to `last`, both included. `last` None: the end of the log is unknown."""

    first: int
    last: int | None

    @property
    def text(self) -> str:
        """Return the range of indexes as text for people."""
        if self.last is None:
            return f"{self.first} and all later ones"
        return f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"

    def file_name(self, checksum: int) -> str:
        """Return the name under which a damaged file with this checksum is kept; the same file
        always gets the same name."""
        last = "end" if self.last is None else f"{self.last:012d}"
        return f"events-{self.first:012d}-{last}-{checksum:08x}.damaged"


def range_of(file_name: str) -> LostRange | None:
    """Return the indexes that a damaged file has lost, from its name; None if it is no such
    file."""
    match = _NAME.fullmatch(file_name)
    if match is None:
        return None
    return LostRange(int(match[1]), None if match[2] == "end" else int(match[2]))


def damage_words(path: str) -> tuple[str, str]:
    """Return the problem of the damaged file at `path` as text, and the remedy."""
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
    "pulls": "background pulls do not resume; start them again with `shoal pull`",
}
