"""Decide for which prompts a runner asks other nodes for KV, and how long the rows wait.

Pure: time arrives as `now`. A row waits at most `ANSWER_S` for the answer. If another node sends a
copy, the row waits as long as the answer says, but never longer than computing was expected to
take. The worker copies the file, and the row reads it from the disk like any other (decision 0106).
At most `MOST_SEEKS` questions are open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bus.models.kv import RunNews, RunQuestion, TokenChain, short_hashes

MOST_SEEKS = 4
ANSWER_S = 1.5
"""A row waits for the answer of other nodes at most this long, and at most `ANSWER_SHARE` of the
time that computing its prompt would take."""
ANSWER_SHARE = 0.25
WORTH_S = 0.2
"""Other nodes are asked only if computing the prompt takes at least this time."""
LANDED_S = 2.0
"""A row waits at most this long until a copied file is found on the disk."""
AGAIN_S = 60.0
"""Other nodes are not asked again for the same prompt before this time has passed."""
STEPS = 8
MOST_REMEMBERED = 256


@dataclass(slots=True)
class MoveFigures:
    """Counts since the load: `runs` copied from other nodes and their `bytes`, `dearer` copies that
    were not made because computing was faster, and copies that `failed` or came too late."""

    runs: int = 0
    bytes: int = 0
    dearer: int = 0
    failed: int = 0


@dataclass(slots=True)
class _Seek:
    """An open question. Rows wait until `until`, which is never later than `began_at` plus
    `computing_s`, the time that computing would take. `has_landed`: the file was copied."""

    began_at: float
    computing_s: float
    until: float
    has_landed: bool = False


@dataclass(slots=True)
class RunSeeks:
    """The questions of one model's runner about runs of KV on other nodes. It asks only while
    `is_on`."""

    least_tokens: int
    is_on: bool = False
    figures: MoveFigures = field(default_factory=MoveFigures)
    questions: list[RunQuestion] = field(default_factory=list[RunQuestion])
    open: dict[str, _Seek] = field(default_factory=dict[str, _Seek])
    _not_before: dict[str, float] = field(default_factory=dict[str, float])

    def waits(
        self,
        chain: TokenChain,
        adapter: str,
        have: int,
        prefill_s: Callable[[int], float],
        read_bytes_per_s: float,
        now: float,
    ) -> bool:
        """Return whether a row should wait for a run of another node. The first `have` tokens of
        the chain are already in this node's memory or files. `prefill_s(n)` returns the expected
        seconds of computing the tokens from `have` to `n`."""
        if not self.is_on or chain.length - have < self.least_tokens:
            return False
        name = chain.run_name(chain.length)
        seek = self.open.get(name)
        if seek is not None:
            return now < seek.until
        if len(self.open) >= MOST_SEEKS or now < self._not_before.get(name, now):
            return False
        steps = range(1, STEPS + 1)
        saves_s = tuple(prefill_s(have + (chain.length - have) * at // STEPS) for at in steps)
        if saves_s[-1] < WORTH_S:
            return False
        wait_s = min(ANSWER_S, ANSWER_SHARE * saves_s[-1])
        self.open[name] = _Seek(now, saves_s[-1], now + wait_s)
        self.questions.append(
            RunQuestion(
                name, adapter, chain.length, have, short_hashes(chain), saves_s, read_bytes_per_s
            )
        )
        return True

    def take_questions(self) -> list[RunQuestion]:
        """Return the new questions."""
        questions, self.questions = self.questions, []
        return questions

    def take(self, news: RunNews, now: float) -> bool:
        """Record the answer of other nodes, or the end of a copy. Return whether a file has arrived
        on the disk, even if no row waits for it any longer."""
        seek = self.open.get(news.name)
        match news.what:
            case "coming":
                if seek is not None:
                    limit = seek.began_at + seek.computing_s
                    seek.until = min(now + news.wait_s, limit)
                return False
            case "moved":
                self.figures.runs += 1
                self.figures.bytes += news.size_bytes
                if seek is not None:
                    seek.until, seek.has_landed = min(seek.until, now + LANDED_S), True
                return True
            case "dearer":
                self.figures.dearer += 1
            case "failed":
                self.figures.failed += 1
            case "none":
                pass
        self._end(news.name, now)
        return False

    def note_file(self, now: float) -> None:
        """Record that a file was found on the disk: rows whose copy has arrived look again."""
        for name, seek in list(self.open.items()):
            if seek.has_landed:
                self._end(name, now)

    def expire(self, now: float) -> None:
        """End the questions for which no row waits any longer."""
        for name, seek in list(self.open.items()):
            if now >= seek.until:
                self._end(name, now)

    def wake_at(self) -> float | None:
        """Return the next instant at which a row no longer waits; None: no row does."""
        return min((seek.until for seek in self.open.values()), default=None)

    def _end(self, name: str, now: float) -> None:
        if self.open.pop(name, None) is not None:
            self._not_before[name] = now + AGAIN_S
        while len(self._not_before) > MOST_REMEMBERED:
            del self._not_before[next(iter(self._not_before))]
