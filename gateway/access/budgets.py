"""The use of each API key at one HTTP process, and whether a key may make more requests.

Pure: limits per minute are counted with `now` (monotonic), limits per day with `wall_s` (seconds
since 1970). Other processes report their use in readings. So the sum over all processes may
slightly exceed a limit: two processes may each admit requests before their reports arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bus.wire.api_keys import KeyLimits
from bus.wire.ids import NodeId
from bus.wire.messages.gateways import KeyUse, KeyUseReading

WINDOW_S = 60.0
DAY_S = 86_400.0
BUSY_RETRY_S = 1.0
"""Retry time if a key already has as many running requests as it may have. One of those requests
may end at any time."""
ELSEWHERE_RETRY_S = 5.0
"""Retry time if requests at other processes used up the limit per minute. Only those processes know
when their requests are older than a minute."""
FRESH_S = 15.0
"""How long another process's report of its running requests and of its requests in the last minute
stays valid."""

Spent = Callable[[], int]
"""Returns the number of tokens that a running request has used so far."""


@dataclass(frozen=True, slots=True)
class OverBudget:
    """The budget that an API key has exhausted for now, with its limit and when to retry."""

    code: str
    message: str
    limit: int
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class KeyTotals:
    """The use of a key, at one process or several. `used_at_s` is 0 if the key was never used."""

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
    """Return a key's use at processes other than `own`. Each reading is the report of a process,
    with its age in seconds.

    An old report still counts for the tokens of its day, because they were used.
    """
    total = NO_USE
    for reading, age_s in readings:
        if (reading.node, reading.process) == own:
            continue
        for use in reading.uses:
            if use.key == key:
                is_fresh = age_s < FRESH_S
                total += KeyTotals(
                    use.running if is_fresh else 0,
                    use.requests if is_fresh else 0,
                    use.tokens if reading.day == day else 0,
                    use.used_at_s,
                )
    return total


@dataclass(slots=True)
class KeyMeter:
    """The use of one key at this process.

    `seconds` has pairs of (second, requests that arrived in it), oldest first. `tokens` is the sum
    of the tokens of requests that ended on the day `day`. `open` has a function for each running
    request, which returns the tokens that the request has used so far.
    """

    running: int = 0
    seconds: deque[list[int]] = field(default_factory=deque[list[int]])
    day: int = 0
    tokens: int = 0
    used_at_s: float = 0.0
    open: list[Spent] = field(default_factory=list[Spent])

    def totals(self, now: float, wall_s: float) -> KeyTotals:
        """Return the use of the key at the instant `now`."""
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
        """Count a request that has arrived, towards the limit per minute."""
        self.used_at_s = wall_s
        if self.seconds and self.seconds[-1][0] == int(now):
            self.seconds[-1][1] += 1
        else:
            self.seconds.append([int(now), 1])

    def ended(self, tokens: int, wall_s: float) -> None:
        """Add the tokens of an ended request to the tokens of the current day."""
        day = day_of(wall_s)
        if day != self.day:
            self.day, self.tokens = day, 0
        self.tokens += tokens


class KeyBudgets:
    """The use of all keys at this process."""

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
        """Return the budget that a further request would exceed; None if the request may run.
        `counted`: the request was already counted for the limit per minute when its job was
        submitted."""
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
        """Count a request that begins. Also count it towards the limit per minute, unless it is
        already `counted`."""
        meter = self._meters.setdefault(key, KeyMeter())
        if not counted:
            meter.came(now, wall_s)
        meter.running += 1

    def left(self, key: str) -> None:
        """Count a request as ended."""
        self._meters[key].running -= 1

    def spends(self, key: str, spent: Spent) -> None:
        """Add a running request. `spent` returns the tokens that the request has used so far."""
        self._meters.setdefault(key, KeyMeter()).open.append(spent)

    def spent(self, key: str, spent: Spent, wall_s: float) -> None:
        """Add the tokens of an ended request to the tokens of the current day."""
        meter = self._meters[key]
        meter.open.remove(spent)
        meter.ended(spent(), wall_s)

    def take_over(self, reading: KeyUseReading, wall_s: float) -> None:
        """Continue the counts of this process's predecessor from its last report: the tokens of
        this day, and the last use of each key."""
        for use in reading.uses:
            meter = self._meters.setdefault(use.key, KeyMeter())
            meter.used_at_s = max(meter.used_at_s, use.used_at_s)
            if reading.day == day_of(wall_s):
                meter.ended(use.tokens, wall_s)

    def forget_others(self, keys: Iterable[str]) -> None:
        """Drop keys that are not among `keys` and have no running request."""
        current = set(keys)
        for key, meter in list(self._meters.items()):
            if key not in current and not meter.running and not meter.open:
                del self._meters[key]

    def totals(self, key: str, now: float, wall_s: float) -> KeyTotals:
        """Return the use of a key at this process."""
        meter = self._meters.get(key)
        return NO_USE if meter is None else meter.totals(now, wall_s)

    def uses(self, now: float, wall_s: float) -> tuple[KeyUse, ...]:
        """Return the use of each key that was used, by id."""
        by_key = {key: meter.totals(now, wall_s) for key, meter in sorted(self._meters.items())}
        return tuple(
            KeyUse(
                key=key,
                running=totals.running,
                requests=totals.requests,
                tokens=totals.tokens,
                used_at_s=round(totals.used_at_s, 3),
            )
            for key, totals in by_key.items()
        )


def _until_one_leaves(meter: KeyMeter | None, beyond: int, now: float) -> float:
    """Return the seconds until `beyond` + 1 requests of this process are older than a minute. If
    this process has fewer requests than that, return a guess."""
    leave = beyond + 1
    for second, count in () if meter is None else meter.seconds:
        leave -= count
        if leave <= 0:
            return max(1.0, second + 1 + WINDOW_S - now)
    return ELSEWHERE_RETRY_S
