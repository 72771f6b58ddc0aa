"""Talks to the bus: the cluster's API keys and their budgets, at one HTTP process.

Keys come from this process's mirror of the state. Each use of a key is reported immediately to all
other HTTP processes of the cluster, but at most once every `APART_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bus.client import BusClient
from bus.links.reactor import Timer
from bus.process.clock import wall
from bus.wire.api_keys import ApiKey
from bus.wire.codec import Envelope
from bus.wire.errors import Refusal
from bus.wire.messages.gateways import KeyUse, KeyUseReading
from bus.wire.topics import reading_topic
from gateway.access.budgets import (
    KeyBudgets,
    KeyTotals,
    OverBudget,
    Spent,
    day_of,
    used_elsewhere,
)
from gateway.access.key_book import KeyBook
from gateway.view.readings import ClusterReadings

KNOWN_S = 3.0
KNOWN_LOOK_S = 0.02
APART_S = 0.05
"""The shortest time between two reports of the keys' use to the other processes."""
TELL_S = 0.1
REPEAT_S = 1.0
"""A report is repeated after this long while a key has running requests, or had requests in the
last minute."""


class ApiKeys:
    """The cluster's API keys that this process accepts. API keys in the settings of this node are
    not among them."""

    def __init__(self, bus: BusClient, readings: ClusterReadings) -> None:
        self._bus = bus
        self._readings = readings
        self._budgets = KeyBudgets()
        self._book = KeyBook({})
        self._reported_uses: tuple[KeyUse, ...] = ()
        self._reported_at = 0.0
        self._has_taken_over = False
        self._telling: Timer | None = None

    @property
    def has_state(self) -> bool:
        """Return whether the cluster's state has arrived. The keys are part of the state."""
        return self._bus.mirror.live

    @property
    def book(self) -> KeyBook:
        """Return the keys of the current state."""
        keys = self._bus.state.api_keys
        if self._book.keys is not keys:
            self._book = KeyBook(keys)
            if self.has_state:
                self._budgets.forget_others(keys)
        return self._book

    async def wait_known(self) -> Refusal | None:
        """Wait until the keys have arrived. If they have not after `KNOWN_S`, return a refusal."""
        give_up_at = self._bus.reactor.now() + KNOWN_S
        while not self.has_state:
            if self._bus.reactor.now() >= give_up_at:
                text = "the gateway has not received the API keys yet; see `shoal status`"
                return Refusal(reason="pending", message=text, retry_after_s=2.0)
            await asyncio.sleep(KNOWN_LOOK_S)
        return None

    def find(self, hashed: str) -> ApiKey | None:
        """Return the key with that hash if it is valid now."""
        return self.book.find(hashed, wall())

    def over_budget(self, key_id: str, *, counted: bool = False) -> OverBudget | None:
        """Return the budget that a further request would exceed; None if the request may run.
        `counted`: the request was already counted for the limit per minute when its job was
        submitted."""
        key = self.book.keys.get(key_id)
        if key is None:
            return None
        elsewhere = self._elsewhere(key_id)
        return self._budgets.over_budget(
            key_id, key.limits, elsewhere, self._now(), wall(), counted=counted
        )

    def come(self, key_id: str, *, counted: bool = False) -> Callable[[], None]:
        """Count a request that begins. Return a function that the caller must call once, at the
        request's end. `counted`: the request was already counted for the limit per minute when its
        job was submitted."""
        self._budgets.came(key_id, self._now(), wall(), counted=counted)
        self._tell()
        self._keep_telling()

        def leave() -> None:
            """Count the request as ended."""
            self._budgets.left(key_id)
            self._tell()

        return leave

    def spends(self, key_id: str | None, spent: Spent) -> Callable[[], None]:
        """Count the tokens of a running request of one of the cluster's keys. `spent` returns the
        tokens that the request has used so far. Return a function that the caller must call once,
        at the request's end."""
        if key_id is None or key_id not in self.book.keys:
            return _nothing
        self._budgets.spends(key_id, spent)

        def settle() -> None:
            """Add the request's tokens to the key's use of this day."""
            self._budgets.spent(key_id, spent, wall())
            self._keep_telling()

        return settle

    def take_over(self, envelope: Envelope) -> None:
        """Continue the counts of this process's predecessor (the HTTP process that had the same
        name before a restart), if `envelope` has its last report of use."""
        speaker, reading = self._bus.speaker, envelope.message
        is_own = (envelope.node, envelope.process) == (speaker.node, speaker.process)
        is_before = is_own and envelope.boot != speaker.boot and not self._has_taken_over
        if isinstance(reading, KeyUseReading) and is_before:
            self._has_taken_over = True
            self._budgets.take_over(reading, wall())
            self._keep_telling()

    def use_of(self, key_id: str) -> KeyTotals:
        """Return the use of a key on all nodes, as far as their reports have arrived."""
        return self._elsewhere(key_id) + self._budgets.totals(key_id, self._now(), wall())

    # --- below ---------------------------------------------------------------------------------

    def _elsewhere(self, key_id: str) -> KeyTotals:
        speaker = self._bus.speaker
        readings = self._readings.key_uses(self._now())
        own = (speaker.node, speaker.process)
        return used_elsewhere(readings, key_id, own, day_of(wall()))

    def _keep_telling(self) -> None:
        """Publish the use of keys at intervals, while there is any use to report."""
        if self._telling is None:
            self._telling = self._bus.reactor.every(TELL_S, self._tell_again)

    def _tell_again(self) -> None:
        self._tell()
        if not self._reported_uses and self._telling is not None:
            self._telling.cancel()
            self._telling = None

    def _tell(self) -> None:
        """Publish the use of keys if it has changed or a repeat is due."""
        now, wall_s = self._now(), wall()
        ago_s = now - self._reported_at
        if ago_s < APART_S:
            return
        uses = self._budgets.uses(now, wall_s)
        is_busy = any(use.running or use.requests for use in uses)
        if uses == self._reported_uses and not (is_busy and ago_s >= REPEAT_S):
            return
        self._reported_uses, self._reported_at = uses, now
        speaker = self._bus.speaker
        reading = KeyUseReading(
            node=speaker.node, process=speaker.process, day=day_of(wall_s), uses=uses
        )
        self._bus.publish(reading_topic("keys", speaker.node, speaker.process), reading)

    def _now(self) -> float:
        return self._bus.reactor.now()


def _nothing() -> None:
    return
