"""People who ask real nodes for many models at once: when, for what and how urgently is drawn from
a seed; what each was told is kept, and reckoned up at the end."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.harness.nodes import Node, Stream

CLASSES = {"urgent": ("urgent",), "normal": ("high", "normal", "low"), "batch": ("batch",)}
DRAWN = ("urgent", "high", "normal", "normal", "normal", "low", "batch")
SHORT_S = 3.0
"""Who waits for no longer need not be told for what."""


@dataclass(frozen=True)
class Wish:
    """One request: so long after the beginning, at which of the nodes; `timeout_s` 0: no limit."""

    at_s: float
    node: int
    model: str
    priority: str
    tokens: int
    timeout_s: float = 0.0


@dataclass
class Asked:
    """A request that was sent, and what came of it."""

    wish: Wish
    stream: Stream

    @property
    def waited_s(self) -> float | None:
        """Until its first token; None where none came."""
        return self.stream.at[0] - self.stream.started_at if self.stream.at else None

    @property
    def is_served(self) -> bool:
        """It has its whole answer."""
        return self.stream.done and self.stream.error is None and self.stream.finish is not None

    def unexplained(self, faults_at: Sequence[float]) -> str:
        """What is not explained about it; empty for nothing. A wait is, by comments that say for
        what; an end is, by an error with words. `faults_at` are when something was killed."""
        stream, end = self.stream, self.stream.ended_at or 0.0
        if stream.broken is not None:
            return f"its connection broke: {stream.broken}"
        if stream.error is not None:
            code, said = stream.error.get("code"), stream.error.get("message")
            return "" if code and said else f"it ended with {stream.error}"
        if not self.is_served:
            return f"it has no end: {stream.finish} {stream.text[-40:]!r}"
        first = stream.at[0] if stream.at else end
        near = any(stream.started_at - SHORT_S < at < first + SHORT_S for at in faults_at)
        if first - stream.started_at > SHORT_S and not stream.comments and not near:
            return f"it waited for {first - stream.started_at:.1f} s and was told nothing"
        return ""


def drawn(seed: int, models: Sequence[str], nodes: int, seconds: float, per_s: float) -> list[Wish]:
    """Return requests that come as Poisson's do, the first models far more often than the last; of
    one in ten there come up to five at once, and one in twelve waits for 20 s and no longer."""
    chance, at_s = random.Random(seed), 0.0
    found: list[Wish] = []
    while (at_s := at_s + chance.expovariate(per_s)) < seconds:
        number = min(int(chance.expovariate(0.35)), len(models) - 1)
        priority, many = chance.choice(DRAWN), chance.random() < 0.1
        timeout_s = 20.0 if chance.random() < 1 / 12 else 0.0
        found += [
            Wish(
                at_s, chance.randrange(nodes), models[number], priority,
                chance.randint(10, 120), timeout_s,
            )
            for _ in range(chance.randint(2, 5) if many else 1)
        ]  # fmt: skip
    return found


def sent(nodes: Sequence[Node], wishes: Sequence[Wish], over: threading.Event) -> list[Asked]:
    """Send each at its time; return all when the last was sent, or when it is over."""
    began, found = time.monotonic(), list[Asked]()
    for wish in wishes:
        if over.wait(max(0.0, began + wish.at_s - time.monotonic())):
            break
        more = {"x_timeout_s": wish.timeout_s} if wish.timeout_s else {}
        stream = nodes[wish.node].stream(
            "Tell me about the sea.", model=wish.model, max_tokens=wish.tokens,
            x_priority=wish.priority, **more,
        )  # fmt: skip
        found.append(Asked(wish, stream))
    return found


def reckoned(asked: Sequence[Asked], loads: Sequence[tuple[float, float]], room: int) -> str:
    """Return the figures: what was served, the waits by class, and loads, each (begin, end)."""
    began = min(one.stream.started_at for one in asked)
    seconds = max(one.stream.ended_at or 0.0 for one in asked) - began
    served = [one for one in asked if one.is_served]
    refused = Counter(
        str(one.stream.error.get("code")) for one in asked if one.stream.error is not None
    )
    lines = [
        f"{len(asked)} asked in {seconds:.0f} s: {len(served)} served, refused {dict(refused)}",
        f"{len(loads)} loads, {sum(end - begin for begin, end in loads):.0f} s of "
        f"{room * seconds:.0f} s of memory spent loading",
    ]
    for name, classes in CLASSES.items():
        waits = sorted(
            one.waited_s
            for one in served
            if one.wish.priority in classes and one.waited_s is not None
        )
        if waits:
            p50, p99 = (
                waits[min(len(waits) - 1, int(share * len(waits)))] for share in (0.5, 0.99)
            )
            lines.append(f"{name:7} {len(waits)} served, waits p50 {p50:.1f} s, p99 {p99:.1f} s")
    return "\n".join(lines)
