"""How much each API key has been used at one HTTP process, and whether it may ask for more.

Pure: `now` is monotonic and counts the minute, `wall_s` are seconds since 1970 and count the day.
What is used elsewhere is told by readings, so the sum over all processes is near a limit, not at
it: what two of them admit before they have heard of each other counts twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bus.wire.api_keys import KeyLimits
from bus.wire.ids import NodeId
from bus.wire.messages.readings import KeyUse, KeyUseReading

WINDOW_S = 60.0
DAY_S = 86_400.0
BUSY_RETRY_S = 1.0
"""Said where as many requests run as may: one of them may end at any time."""
ELSEWHERE_RETRY_S = 5.0
"""Said where other processes filled the minute: when theirs leave it is theirs to know."""
FRESH_S = 15.0
"""What a process said of what runs, and of the last minute, is believed for so long."""

Spent = Callable[[], int]
"""Tells how many tokens a request that runs has used so far."""


@dataclass(frozen=True, slots=True)
class OverBudget:
    """A 'no' for now: which budget of the key is used up, how large it is, when to come again."""

    code: str
    message: str
    limit: int
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class KeyTotals:
    """What was asked for with a key, at one process or at several. `used_at_s` 0: never."""

    running: int = 0
    requests: int = 0
    tokens: int = 0
    used_at_s: float = 0.0

    def __add__(self, other: KeyTotals) -> KeyTotals:
        return KeyTotals(
            self.running + other.running,
            self.requests + other.requests,
            self.tokens + other.tokens,
            max(self.used_at_s, other.used_at_s),
        )


NO_USE = KeyTotals()


def day_of(wall_s: float) -> int:
    """Return the day of UTC, counted since 1970."""
    return int(wall_s // DAY_S)


def used_elsewhere(
    readings: Iterable[tuple[KeyUseReading, float]], key: str, own: tuple[NodeId, str], day: int
) -> KeyTotals:
    """Return what other processes than `own` tell of a key; each reading with its age in seconds.

    Of an old reading its tokens of the day still count, for they were used.
    """
    found = NO_USE
    for reading, age_s in readings:
        if (reading.node, reading.process) == own:
            continue
        for use in reading.uses:
            if use.key == key:
                is_fresh = age_s < FRESH_S
                found += KeyTotals(
                    use.running if is_fresh else 0,
                    use.requests if is_fresh else 0,
                    use.tokens if reading.day == day else 0,
                    use.used_at_s,
                )
    return found


@dataclass(slots=True)
class KeyMeter:
    """One key at this process. `seconds` are (second, requests that came in it), oldest first;
    `tokens` are those of requests of `day` that have ended, `open` tell those of the others."""

    running: int = 0
    seconds: deque[list[int]] = field(default_factory=deque[list[int]])
    day: int = 0
    tokens: int = 0
    used_at_s: float = 0.0
    open: list[Spent] = field(default_factory=list[Spent])

    def totals(self, now: float, wall_s: float) -> KeyTotals:
        """Return what is used now."""
        while self.seconds and now - self.seconds[0][0] >= WINDOW_S + 1:
            self.seconds.popleft()
        ended = self.tokens if self.day == day_of(wall_s) else 0
        return KeyTotals(
            self.running,
            sum(count for _, count in self.seconds),
            ended + sum(spent() for spent in self.open),
            self.used_at_s,
        )

    def came(self, now: float, wall_s: float) -> None:
        """Count a request for the minute."""
        self.used_at_s = wall_s
        if self.seconds and self.seconds[-1][0] == int(now):
            self.seconds[-1][1] += 1
        else:
            self.seconds.append([int(now), 1])

    def ended(self, tokens: int, wall_s: float) -> None:
        """Count tokens of a request that has ended."""
        day = day_of(wall_s)
        if day != self.day:
            self.day, self.tokens = day, 0
        self.tokens += tokens


class KeyBudgets:
    """All keys at this process."""

    def __init__(self) -> None:
        self._meters: dict[str, KeyMeter] = {}

    def over_budget(
        self,
        key: str,
        limits: KeyLimits,
        elsewhere: KeyTotals,
        now: float,
        wall_s: float,
        *,
        counted: bool = False,
    ) -> OverBudget | None:
        """Return which budget a further request would exceed; None where it may come. `counted`: it
        was counted for a minute when it was submitted."""
        meter = self._meters.get(key)
        used = elsewhere if meter is None else elsewhere + meter.totals(now, wall_s)
        most = limits.concurrent
        if most is not None and used.running >= most:
            text = f"this API key has {used.running} running requests, its limit"
            return OverBudget("concurrency_limit_exceeded", text, most, BUSY_RETRY_S)
        most = limits.requests_per_minute
        if most is not None and used.requests >= most and not counted:
            text = f"this API key made {used.requests} requests in a minute; its limit is {most}"
            again_s = _until_one_leaves(meter, used.requests - most, now)
            return OverBudget("rate_limit_exceeded", text, most, again_s)
        most = limits.tokens_per_day
        if most is not None and used.tokens >= most:
            text = (
                f"this API key used {used.tokens} tokens today; its limit is {most}; the day ends "
                "at midnight UTC"
            )
            again_s = DAY_S - wall_s % DAY_S
            return OverBudget("token_quota_exceeded", text, most, again_s)
        return None

    def came(self, key: str, now: float, wall_s: float, *, counted: bool = False) -> None:
        """Count a request that begins, and where it is not `counted` yet, for the minute."""
        meter = self._meters.setdefault(key, KeyMeter())
        if not counted:
            meter.came(now, wall_s)
        meter.running += 1

    def left(self, key: str) -> None:
        """Count a request as ended."""
        self._meters[key].running -= 1

    def spends(self, key: str, spent: Spent) -> None:
        """Count the tokens of a request that runs, as it tells them."""
        self._meters.setdefault(key, KeyMeter()).open.append(spent)

    def spent(self, key: str, spent: Spent, wall_s: float) -> None:
        """Count the tokens of a request for good."""
        meter = self._meters[key]
        meter.open.remove(spent)
        meter.ended(spent(), wall_s)

    def take_over(self, reading: KeyUseReading, wall_s: float) -> None:
        """Go on from what an earlier process of this name had counted: its tokens of this day, and
        when each key was last used."""
        for use in reading.uses:
            meter = self._meters.setdefault(use.key, KeyMeter())
            meter.used_at_s = max(meter.used_at_s, use.used_at_s)
            if reading.day == day_of(wall_s):
                meter.ended(use.tokens, wall_s)

    def forget_others(self, keys: Iterable[str]) -> None:
        """Forget keys that are not among `keys` and of which nothing runs."""
        known = set(keys)
        for key, meter in list(self._meters.items()):
            if key not in known and not meter.running and not meter.open:
                del self._meters[key]

    def totals(self, key: str, now: float, wall_s: float) -> KeyTotals:
        """Return what is used of a key here."""
        meter = self._meters.get(key)
        return NO_USE if meter is None else meter.totals(now, wall_s)

    def uses(self, now: float, wall_s: float) -> tuple[KeyUse, ...]:
        """Return the use of every key that has had any, by id."""
        found = {key: meter.totals(now, wall_s) for key, meter in sorted(self._meters.items())}
        return tuple(
            KeyUse(
                key=key,
                running=totals.running,
                requests=totals.requests,
                tokens=totals.tokens,
                used_at_s=round(totals.used_at_s, 3),
            )
            for key, totals in found.items()
        )


def _until_one_leaves(meter: KeyMeter | None, beyond: int, now: float) -> float:
    """Return the seconds until one more than `beyond` of this process's requests have left the
    minute; a guess where there are fewer."""
    leave = beyond + 1
    for second, count in () if meter is None else meter.seconds:
        leave -= count
        if leave <= 0:
            return max(1.0, second + 1 + WINDOW_S - now)
    return ELSEWHERE_RETRY_S
