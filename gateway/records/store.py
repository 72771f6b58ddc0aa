"""The answers that one HTTP process keeps, so that later requests go on from them.

Pure. Bounded by their number and by their bytes: beyond either the oldest answer goes of the owner
who has the most, so that one owner's answers cost another none while the other has fewer. An owner
finds no other's answers. Items that several answers share count for each of them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

from gateway.dialects.dialect import KeptAnswer

MOST_ANSWERS = 4096
MOST_BYTES = 32 << 20
"""Of all answers together with what they were made from: two full contexts of a large model are
about one MiB."""
LARGEST_BYTES = 8 << 20
"""A larger answer is not kept: it would cost its owner all others."""


def size_of(kept: KeptAnswer) -> int:
    """Return the bytes that count for an answer."""
    beside = len(kept.listed) + len(kept.labels)
    return len(kept.answer) + beside + sum(map(len, kept.items))


@dataclass(slots=True)
class _Shelf:
    """The answers of one owner, the oldest first."""

    answers: OrderedDict[str, KeptAnswer] = field(default_factory=OrderedDict[str, KeptAnswer])
    size_bytes: int = 0


class AnswerStore:
    """Answers by owner and id. An owner is the id of an API key, empty where there is one or
    none."""

    def __init__(self, *, most_answers: int = MOST_ANSWERS, most_bytes: int = MOST_BYTES) -> None:
        self._most_answers = most_answers
        self._most_bytes = most_bytes
        self._shelves: dict[str, _Shelf] = {}

    @property
    def count(self) -> int:
        """Return how many answers are kept."""
        return sum(len(shelf.answers) for shelf in self._shelves.values())

    @property
    def size_bytes(self) -> int:
        """Return the bytes that count for all answers."""
        return sum(shelf.size_bytes for shelf in self._shelves.values())

    def keep(self, owner: str, answer_id: str, kept: KeptAnswer) -> bool:
        """Keep an answer in place of one of its id; return False for one that is too large."""
        self.remove(owner, answer_id)
        size_bytes = size_of(kept)
        if size_bytes > min(LARGEST_BYTES, self._most_bytes):
            return False
        shelf = self._shelves.setdefault(owner, _Shelf())
        shelf.answers[answer_id] = kept
        shelf.size_bytes += size_bytes
        while self.count > self._most_answers:
            self._drop_oldest(max(self._shelves.values(), key=lambda one: len(one.answers)))
        while self.size_bytes > self._most_bytes:
            self._drop_oldest(max(self._shelves.values(), key=lambda one: one.size_bytes))
        return True

    def find(self, owner: str, answer_id: str) -> KeptAnswer | None:
        """Return an answer of this owner's, None where there is none."""
        shelf = self._shelves.get(owner)
        return None if shelf is None else shelf.answers.get(answer_id)

    def label(self, owner: str, answer_id: str, labels: bytes) -> bool:
        """Give an answer of this owner's other labels; return False where there is none."""
        shelf = self._shelves.get(owner)
        kept = None if shelf is None else shelf.answers.get(answer_id)
        if shelf is None or kept is None:
            return False
        made = shelf.answers[answer_id] = replace(kept, labels=labels)
        shelf.size_bytes += size_of(made) - size_of(kept)
        return True

    def listed(self, owner: str) -> list[tuple[str, KeptAnswer]]:
        """Return the answers of this owner that are in lists, by their ids, the oldest first."""
        shelf = self._shelves.get(owner)
        found = () if shelf is None else shelf.answers.items()
        return [(answer_id, kept) for answer_id, kept in found if kept.listed]

    def remove(self, owner: str, answer_id: str) -> bool:
        """Remove an answer of this owner's; return False where there is none."""
        shelf = self._shelves.get(owner)
        kept = None if shelf is None else shelf.answers.pop(answer_id, None)
        if shelf is None or kept is None:
            return False
        shelf.size_bytes -= size_of(kept)
        if not shelf.answers:
            del self._shelves[owner]
        return True

    def _drop_oldest(self, shelf: _Shelf) -> None:
        _, oldest = shelf.answers.popitem(last=False)
        shelf.size_bytes -= size_of(oldest)
