"""Whose turn it is, and who gives way: places shared evenly among those who ask for them.

Pure. A sharer is a path, outermost first: API key, client id, peer address, connection. On each
level branches share evenly what their common beginning has, however many there are below them;
what is asked for by one alone, it may have whole. One place moves only from a branch that holds at
least two more than the one it goes to, so that no place moves back and forth. Of those who
wait for a place at a runner the one with the best standing has it, and that gets better steadily.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

Sharer = tuple[str, ...]
PRIORITIES: Mapping[str, int] = {"urgent": 1, "high": 5, "normal": 10, "low": 20, "batch": 50}
"""Words for priorities; the smaller number goes first."""
MAX_PRIORITY = 1000
AGED_S = 15.0
"""Who has waited for a place at a runner for so long stands before all who have not."""


def standing(priority: int, waited_s: float, aged_s: float = AGED_S) -> float:
    """Return where one stands that has waited so long for a place; the smaller goes first.

    It is the priority at first, falls steadily, and is 0 (the best there is) from `aged_s` on.
    """
    return 0.0 if waited_s >= aged_s else priority * (1.0 - max(0.0, waited_s) / aged_s)


class Shares:
    """How many places each sharer holds, and each branch of them."""

    def __init__(self, holders: Iterable[Sharer] = ()) -> None:
        self._held: Counter[Sharer] = Counter()
        self._below: dict[Sharer, dict[Sharer, None]] = {}
        for holder in holders:
            self.take(holder)

    def take(self, sharer: Sharer) -> None:
        """Note that a sharer holds one more place."""
        self._held[()] += 1
        for depth in range(len(sharer)):
            branch = sharer[: depth + 1]
            self._held[branch] += 1
            if self._held[branch] == 1:
                self._below.setdefault(sharer[:depth], {})[branch] = None

    def give_back(self, sharer: Sharer) -> None:
        """Note that a sharer holds one place less."""
        self._held[()] -= 1
        for depth in range(len(sharer)):
            branch = sharer[: depth + 1]
            self._held[branch] -= 1
            if not self._held[branch]:
                del self._held[branch]
                siblings = self._below[sharer[:depth]]
                del siblings[branch]
                if not siblings:
                    del self._below[sharer[:depth]]

    def held(self, branch: Sharer) -> int:
        """Return how many places a branch holds; `()` is that of all."""
        return self._held[branch]

    def weight(self, sharer: Sharer) -> tuple[int, ...]:
        """Return what a sharer's branches hold, outermost first: whose is the least has the next
        turn, whose is the greatest is the first to give way."""
        held = self._held
        return tuple(held[sharer[: depth + 1]] for depth in range(len(sharer)))

    def gives_way(self, to: Sharer) -> Sharer | None:
        """Return the sharer that has to give a place up to another; None where `to` has its share.

        The outermost level at which a branch holds at least two more than that of `to` decides;
        in that branch it is the sharer with most.
        """
        for depth in range(len(to)):
            branch = self._most(to[:depth])
            if branch is not None and self._held[branch] >= self._held[to[: depth + 1]] + 2:
                while (most := self._most(branch)) is not None:
                    branch = most
                return branch
        return None

    def copy(self) -> Shares:
        """Return shares that change apart from these."""
        twin = Shares()
        twin._held = self._held.copy()
        twin._below = {branch: dict(below) for branch, below in self._below.items()}
        return twin

    def _most(self, branch: Sharer) -> Sharer | None:
        return max(self._below.get(branch, ()), key=self._held.__getitem__, default=None)


def has_share(holders: Iterable[Sharer], sharer: Sharer, limit: int) -> bool:
    """Return whether one more may have a place beside `holders`, though all `limit` are taken: one
    who has a right to another's. Those of one outermost branch have at most twice `limit`."""
    shares = Shares(holders)
    return shares.held(sharer[:1]) < 2 * limit and shares.gives_way(sharer) is not None


def in_turn(asking: Sequence[Sharer]) -> list[int]:
    """Return the order in which those who ask have their turns, as positions in `asking`: on each
    level the branches in rotation, beginning with the first to ask, each in its own order."""
    order = list(range(len(asking)))
    for depth in range(max(map(len, asking), default=0), 0, -1):
        turns: Counter[Sharer] = Counter()
        turn: dict[int, int] = {}
        for position in order:
            branch = asking[position][:depth]
            turn[position] = turns[branch]
            turns[branch] += 1
        order.sort(key=turn.__getitem__)
    return order
