"""How much of the time prefill may have beside decodes.

Pure. `PrefillAccount` turns one setting, the prefill share s, into chunks: while rows decode,
prefill earns s / (1 - s) seconds for each second of decoding, and a chunk is run when it is paid
for. So ITL grows by 1 / (1 - s) and a prompt takes 1 / s of its time alone, at any chunk size.
A single chunk is kept under a bound as well, so that the tail of the ITL follows its mean: with
it a mixed step stays under `EVEN_TAIL` / (1 - s) of a decode step, or under `TAIL` / (1 - s)
where smaller chunks would waste too much of prefill's time.

Where more prompts wait than s gives their due, rows share the time: of p prompts and d decodes
prefill gets p / (p + d), short prompts counted several times, so that many short questions that
come together are not served one by one beside the first of them. Decodes keep at least
1 / `CROWD` of what s leaves them.

Chunked prefill mixed with decodes is Sarathi-Serve's; the budget in seconds instead of tokens is
ours, and equal shares for rows are processor sharing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.schedule.costs import CostModel, GroupSize

EVEN_TAIL, TAIL = 1.0, 1.3
"""Bounds of a mixed step, in units of the mean step 1 / (1 - s): where chunks of that size are
efficient, and where they are not."""
DEAR = 1.25
"""Chunks are inefficient whose tokens cost so many times those of a chunk without bound."""
CROWD = 4.0
"""Decodes never get less than 1 / `CROWD` of what s leaves them, however many prompts wait."""
BOUT_CHUNKS = 4
"""Chunks are measured in bouts of so many."""
QUIET_EVERY = 96
"""After so many steps without an undisturbed decode, one is arranged."""
LEAST_CHUNK = 16
"""Smaller chunks cost hardly less; the account spaces them where they are dear."""


@dataclass(slots=True)
class PrefillAccount:
    """Seconds of prefill that decodes have paid for. `share` is s, 0 < s < 1."""

    share: float
    balance_s: float = 0.0

    def share_among(self, prompts: float, decodes: int) -> float:
        """Return the share of `prompts` rows that wait for their first token beside `decodes`
        rows."""
        if not prompts:
            return self.share
        equal = prompts / (prompts + decodes)
        return max(self.share, min(equal, 1.0 - (1.0 - self.share) / CROWD))

    def earned_s(self, decode_s: float, share: float) -> float:
        """Return the seconds of prefill that a decode of `decode_s` pays for at `share`."""
        return share / (1.0 - share) * decode_s

    def chunk_limit_s(self, decode_s: float, share: float) -> float:
        """Return the longest that one chunk beside a decode of `decode_s` may take."""
        return (TAIL / (1.0 - share) - 1.0) * decode_s

    def even_limit_s(self, decode_s: float, share: float) -> float:
        """Return the longest where chunks of that size are efficient."""
        return (EVEN_TAIL / (1.0 - share) - 1.0) * decode_s

    def earn(self, earned_s: float, *, chunk_s: float) -> None:
        """Add what a decode step pays for; earlier savings count up to `BOUT_CHUNKS` times
        `chunk_s`."""
        self.balance_s = min(self.balance_s + earned_s, BOUT_CHUNKS * chunk_s + earned_s)

    def affords(self, prefill_s: float) -> bool:
        """Return whether so many seconds of prefill are paid for."""
        return self.balance_s >= prefill_s * 0.999

    def spend(self, prefill_s: float) -> None:
        """Take the seconds of a chunk that is planned."""
        self.balance_s -= prefill_s

    def correct(self, prefill_s: float, *, debt_s: float) -> None:
        """Take what chunks took beyond what was booked (or less); a debt never exceeds `debt_s`."""
        self.balance_s = max(self.balance_s - prefill_s, -debt_s)

    def forgive(self) -> None:
        """Drop a debt: nothing decodes that it could be owed to."""
        self.balance_s = max(self.balance_s, 0.0)


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step that was read: its decode rows, its prefill groups, what was booked for
    them, and the seconds that passed from the step before it to it."""

    decode_rows: int
    groups: tuple[GroupSize, ...]
    booked_s: float
    took_s: float


@dataclass(slots=True)
class Timekeeper:
    """Measured steps become costs, and settle the account.

    The engine is a step ahead, so a little of one step's time is often seen in its neighbour's.
    Decodes are therefore learned only between decodes, and chunks in bouts: all that a bout of
    steps took, less its decodes, is its chunks'. While every step has a chunk, prefill is held
    for a moment now and then (`wants_quiet`), so that decodes can be measured.
    """

    costs: CostModel
    account: PrefillAccount
    steps_since_quiet: int = 0
    _last: list[StepTime] = field(default_factory=list[StepTime])
    _bout: list[StepTime] = field(default_factory=list[StepTime])

    @property
    def wants_quiet(self) -> bool:
        """Return whether prefill is to be held for a moment, so that decodes can be measured."""
        return self.steps_since_quiet >= QUIET_EVERY

    def took(self, step: StepTime, *, idle_next: bool) -> None:
        """Take a step that was read; `idle_next` when nothing else is under way."""
        self._last = [*self._last[-2:], step]
        quiet = len(self._last) == 3 and not any(one.groups for one in self._last)
        if quiet and self._last[1].decode_rows:
            self.costs.learn_decode(self._last[1].decode_rows, self._last[1].took_s)
            self.steps_since_quiet = 0
        elif step.decode_rows:
            self.steps_since_quiet += 1
        if step.groups or self._bout:
            self._bout.append(step)
            self._charge(step)
        chunks = sum(bool(one.groups) for one in self._bout)
        over = not step.groups and len(self._bout) > 1 and not self._bout[-2].groups
        if self._bout and (idle_next or over or chunks >= BOUT_CHUNKS):
            self._settle()
        if idle_next:
            self._last.clear()

    def forget(self) -> None:
        """Forget all that was measured."""
        self.costs.forget()
        self._last.clear()
        self._bout.clear()

    def _charge(self, step: StepTime) -> None:
        """Charge prefill at once with what a step of a bout took beyond its decode: what leaks into
        a neighbour is charged there."""
        if step.decode_rows and self.costs.knows_decode:
            decode_s = self.costs.decode_s(step.decode_rows)
            debt_s = BOUT_CHUNKS * self.account.chunk_limit_s(decode_s, self.account.share)
            self.account.correct(step.took_s - decode_s - step.booked_s, debt_s=debt_s)

    def _settle(self) -> None:
        bout, self._bout = self._bout, []
        if not self.costs.knows_decode:
            bout = [step for step in bout if not step.decode_rows]
        groups = [group for step in bout for group in step.groups]
        decodes_s = sum(self.costs.decode_s(step.decode_rows) for step in bout)
        chunks_s = max(sum(step.took_s for step in bout) - decodes_s, 0.0)
        self.costs.learn_prefill(groups, chunks_s)
