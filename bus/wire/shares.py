"""Fair shares: divides the places at a runner or in a queue evenly among sharers, and chooses who
is next and who yields.

Pure. A sharer is a path, outermost first: API key, client id, peer address, connection. On each
level, the branches below a common prefix share its places evenly, however many sharers each branch
has. A sharer without competition may have all places. A place moves only from a branch that holds
at least two more than the receiving one, so that no place moves back and forth. Among the requests
that wait for a place at a runner, the one with the best standing wins; standings improve steadily.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

Sharer = tuple[str, ...]
PRIORITIES: Mapping[str, int] = {"urgent": 1, "high": 5, "normal": 10, "low": 20, "batch": 50}
"""Priorities by name; the smaller number goes first."""
MAX_PRIORITY = 1000
AGED_S = 15.0
"""A request that has waited this long for a place at a runner has the best standing."""


def standing(priority: int, waited_s: float, aged_s: float = AGED_S) -> float:
    """Return the standing of a request that has waited this long for a place; the smaller goes
    first.

    It starts as the priority, falls steadily, and is 0 (the best) from `aged_s` on.
    """
    return 0.0 if waited_s >= aged_s else priority * (1.0 - max(0.0, waited_s) / aged_s)


class Shares:
    """The number of places that each sharer holds, and each branch (all sharers whose paths have a
    common prefix, such as one API key)."""

    def __init__(self, holders: Iterable[Sharer] = ()) -> None:
        self._held: Counter[Sharer] = Counter()
        self._below: dict[Sharer, dict[Sharer, None]] = {}
        for holder in holders:
            self.take(holder)

    def take(self, sharer: Sharer) -> None:
        """Add one place (a row or a place in the queue) to those of `sharer`."""
        self._held[()] += 1
        for depth in range(len(sharer)):
            branch = sharer[: depth + 1]
            self._held[branch] += 1
            if self._held[branch] == 1:
                self._below.setdefault(sharer[:depth], {})[branch] = None

    def give_back(self, sharer: Sharer) -> None:
        """Subtract one place from those of `sharer`."""
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
        """Return the number of places of a branch; `()` is the total."""
        return self._held[branch]

    def weight(self, sharer: Sharer) -> tuple[int, ...]:
        """Return the number of places of each branch on a sharer's path, outermost first. The
        sharer with the least weight is served next; the sharer with the greatest weight yields
        first."""
        held = self._held
        return tuple(held[sharer[: depth + 1]] for depth in range(len(sharer)))

    def gives_way(self, to: Sharer) -> Sharer | None:
        """Return the sharer that must yield a place to `to`; None if `to` has its share.

        Levels are compared from the outermost inwards. At the first level on which some branch
        holds at least two places more than the branch of `to`, the sharer with the most places in
        that branch yields.
        """
        for depth in range(len(to)):
            branch = self._most(to[:depth])
            if branch is not None and self._held[branch] >= self._held[to[: depth + 1]] + 2:
                while (most := self._most(branch)) is not None:
                    branch = most
                return branch
        return None

    def copy(self) -> Shares:
        """Return an independent copy."""
        twin = Shares()
        twin._held = self._held.copy()
        twin._below = {branch: dict(below) for branch, below in self._below.items()}
        return twin

    def _most(self, branch: Sharer) -> Sharer | None:
        return max(self._below.get(branch, ()), key=self._held.__getitem__, default=None)


def has_share(holders: Iterable[Sharer], sharer: Sharer, limit: int) -> bool:
    """Return whether `sharer` may take a place although `holders` have all `limit` places. It may
    if another sharer, which has more than its share, must yield a place. All sharers with the same
    API key (the first part of their path) together get at most twice `limit` places."""
    shares = Shares(holders)
    return shares.held(sharer[:1]) < 2 * limit and shares.gives_way(sharer) is not None


def in_turn(asking: Sequence[Sharer]) -> list[int]:
    """Return the order in which the requests are served, as indexes into `asking`. On each level
    the branches take turns, beginning with the first to ask; each branch keeps its own order."""
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
