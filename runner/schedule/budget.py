"""Divide time between prefill and decode.

Pure. `PrefillAccount` turns one setting, the prefill share s, into chunks. While rows decode,
prefill earns s / (1 - s) seconds per second of decoding, and a chunk runs when it is paid for. So
ITL grows by the factor 1 / (1 - s), and a prompt takes 1 / s times as long as it would alone, at
any chunk size. A single chunk is bounded too, so that the tail of the ITL follows its mean. A mixed
step stays under `EVEN_TAIL` / (1 - s) of a decode step, or under `TAIL` / (1 - s) where smaller
chunks would waste too much of prefill's time.

If more prompts wait than s covers, rows share the time: of p prompts and d decodes prefill gets p /
(p + d). Short prompts count several times, so that many short questions that arrive together are
not served one after the other. Decodes keep at least 1 / `CROWD` of the time that the share
s leaves them.

Sources: chunked prefill mixed with decodes is Sarathi-Serve's; equal shares for rows are processor
sharing. The budget in seconds instead of tokens is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.schedule.costs import CostModel, GroupSize

EVEN_TAIL, TAIL = 1.0, 1.3
"""Limits on the time of a step with a chunk, as multiples of the mean step 1 / (1 - s): `EVEN_TAIL`
if the chunk is efficient, `TAIL` if it is not."""
DEAR = 1.25
"""A chunk is inefficient if one of its tokens costs more than `DEAR` times as much as a token of a
chunk of full size."""
CROWD = 4.0
"""However many prompts wait, decodes get at least 1 / `CROWD` of the time that the prefill share s
leaves them."""
BOUT_CHUNKS = 4
"""The number of chunks that are measured together, because a part of a step's time can show in the
next step."""
QUIET_EVERY = 96
"""If no decode could be measured in this many consecutive steps, prefill pauses until one is
measured."""
LEAST_CHUNK = 16
"""The smallest chunk in tokens. Smaller chunks cost hardly less, so the account makes chunks of
this size rarer instead."""


@dataclass(slots=True)
class PrefillAccount:
    """The seconds of prefill that decode steps have earned (`balance_s`). `share` is s, 0 < s < 1.
    `unsettled_s` are the seconds of decode steps while no prompt waited; what they earn is added
    when the next prompt waits."""

    share: float
    balance_s: float = 0.0
    unsettled_s: float = 0.0

    def share_among(self, prompts: float, decodes: int) -> float:
        """Return prefill's share of the time if `prompts` rows wait for their first token and
        `decodes` rows decode."""
        if not prompts:
            return self.share
        equal = prompts / (prompts + decodes)
        return max(self.share, min(equal, 1.0 - (1.0 - self.share) / CROWD))

    def earned_s(self, decode_s: float, share: float) -> float:
        """Return the seconds of prefill that a decode step of `decode_s` seconds pays for, if
        prefill gets the fraction `share` of the time."""
        return share / (1.0 - share) * decode_s

    def chunk_limit_s(self, decode_s: float, share: float) -> float:
        """Return how many seconds a chunk may take in a step whose decode takes `decode_s`
        (`TAIL`)."""
        return (TAIL / (1.0 - share) - 1.0) * decode_s

    def even_limit_s(self, decode_s: float, share: float) -> float:
        """Return how many seconds a chunk may take in a step whose decode takes `decode_s`, if a
        chunk of that time is efficient (`EVEN_TAIL`). The step then takes no longer than the mean
        step."""
        return (EVEN_TAIL / (1.0 - share) - 1.0) * decode_s

    def earn(self, earned_s: float, *, chunk_s: float) -> None:
        """Add the seconds of prefill that a decode step earned, and those of the unsettled steps
        before it. The balance before this step is capped at `BOUT_CHUNKS` chunks of `chunk_s`."""
        before_s = self.earned_s(self.unsettled_s, self.share)
        self.unsettled_s = 0.0
        saved_s = min(self.balance_s + before_s, BOUT_CHUNKS * chunk_s)
        self.balance_s = saved_s + earned_s

    def affords(self, prefill_s: float) -> bool:
        return self.balance_s >= prefill_s * 0.999

    def spend(self, prefill_s: float) -> None:
        """Subtract the cost of a planned chunk from the seconds that prefill has earned."""
        self.balance_s -= prefill_s

    def correct(self, prefill_s: float, *, debt_s: float) -> None:
        """Subtract the seconds by which prefill took longer than planned. The balance can become
        negative, down to `-debt_s`; no chunk runs until decodes have paid the debt."""
        self.balance_s = max(self.balance_s - prefill_s, -debt_s)

    def forgive(self) -> None:
        """Cancel a debt of prefill. The caller does this when no row decodes, because then prefill
        delays no row."""
        self.balance_s = max(self.balance_s, 0.0)


@dataclass(frozen=True, slots=True)
class StepTime:
    """A finished step: its decode rows and its prefill groups. `booked_s` are the seconds that its
    chunks were expected to take, `took_s` those since the previous step. `width` is above 1 if
    the step verified a draft of its only row."""

    decode_rows: int
    groups: tuple[GroupSize, ...]
    booked_s: float
    took_s: float
    width: int = 1


@dataclass(slots=True)
class Timekeeper:
    """Learns the costs of steps from their measured times, and corrects the account by them.

    The engine is one step ahead, so part of one step's time often shows in the step before or after
    it. A decode is therefore measured only in the middle of three steps without chunks. Chunks are
    measured in bouts (groups of consecutive steps): the time of a bout less its decodes is the time
    of its chunks. If every step has a chunk, prefill is paused now and then (`wants_quiet`) so that
    decodes can be measured.
    """

    costs: CostModel
    account: PrefillAccount
    steps_since_quiet: int = 0
    _last: list[StepTime] = field(default_factory=list[StepTime])
    _bout: list[StepTime] = field(default_factory=list[StepTime])

    @property
    def wants_quiet(self) -> bool:
        """Return whether to pause prefill so that decodes can be measured."""
        return self.steps_since_quiet >= QUIET_EVERY

    def took(self, step: StepTime, *, idle_next: bool) -> None:
        """Record a finished step. `idle_next`: no other step was submitted to the device yet, so
        the next step's time cannot contain a part of this one's."""
        if step.width > 1:
            self._verified()
            return
        self._last = [*self._last[-2:], step]
        quiet = len(self._last) == 3 and not any(earlier.groups for earlier in self._last)
        if quiet and self._last[1].decode_rows:
            self.costs.learn_decode(self._last[1].decode_rows, self._last[1].took_s)
            self.steps_since_quiet = 0
        elif step.decode_rows:
            self.steps_since_quiet += 1
        if step.groups or self._bout:
            self._bout.append(step)
            self._charge(step)
        chunks = sum(bool(earlier.groups) for earlier in self._bout)
        over = not step.groups and len(self._bout) > 1 and not self._bout[-2].groups
        if self._bout and (idle_next or over or chunks >= BOUT_CHUNKS):
            self._settle()
        if idle_next:
            self._last.clear()

    def forget(self) -> None:
        self.costs.forget()
        self._last.clear()
        self._bout.clear()

    def _verified(self) -> None:
        """End the current bout after a step that verified a draft. Such a step teaches nothing
        about plain decodes; the costs of drafts were measured at load."""
        if self._bout:
            self._settle()
        self._last.clear()

    def _charge(self, step: StepTime) -> None:
        """Correct the account at once, without waiting for the end of the bout: the time of this
        step beyond its decode was spent on prefill."""
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
