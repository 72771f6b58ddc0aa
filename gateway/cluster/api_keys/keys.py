"""Talks to the bus: the cluster's API keys and their budgets, at one HTTP process.

Keys are those of this process's mirror of the state. What is used here is told to all other HTTP
processes of the cluster, soon and seldom: at once, but not within `APART_S` of the last time.
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
from bus.wire.messages.readings import KeyUse, KeyUseReading
from bus.wire.topics import reading_topic
from gateway.cluster.api_keys.book import KeyBook
from gateway.cluster.api_keys.budgets import (
    KeyBudgets,
    KeyTotals,
    OverBudget,
    Spent,
    day_of,
    used_elsewhere,
)
from gateway.cluster.readings import ClusterReadings

KNOWN_S = 3.0
KNOWN_LOOK_S = 0.02
APART_S = 0.05
"""Two readings are so far apart at least."""
TELL_S = 0.1
REPEAT_S = 1.0
"""A reading is told again after this long while anything runs or was asked for in the last
minute."""


class ApiKeys:
    """The keys that this process takes beside those of its settings."""

    def __init__(self, bus: BusClient, readings: ClusterReadings) -> None:
        self._bus = bus
        self._readings = readings
        self._budgets = KeyBudgets()
        self._book = KeyBook({})
        self._told: tuple[KeyUse, ...] = ()
        self._told_at = 0.0
        self._went_on = False
        self._telling: Timer | None = None

    @property
    def known(self) -> bool:
        """Return whether it is known which keys there are: the state has been heard."""
        return self._bus.mirror.live

    @property
    def book(self) -> KeyBook:
        """Return the keys as the state has them now."""
        keys = self._bus.state.api_keys
        if self._book.keys is not keys:
            self._book = KeyBook(keys)
            if self.known:
                self._budgets.forget_others(keys)
        return self._book

    async def wait_known(self) -> Refusal | None:
        """Wait until it is known which keys there are; return a refusal after `KNOWN_S`."""
        give_up_at = self._bus.reactor.now() + KNOWN_S
        while not self.known:
            if self._bus.reactor.now() >= give_up_at:
                text = "the gateway has not received the API keys yet; see `shoal status`"
                return Refusal(reason="pending", message=text, retry_after_s=2.0)
            await asyncio.sleep(KNOWN_LOOK_S)
        return None

    def find(self, hashed: str) -> ApiKey | None:
        """Return the key of that hash, if it is taken now."""
        return self.book.find(hashed, wall())

    def over_budget(self, key_id: str, *, counted: bool = False) -> OverBudget | None:
        """Return which budget of a key a further request would exceed; None where it may come.
        `counted`: it was counted for the minute before, as in the next."""
        key = self.book.keys.get(key_id)
        if key is None:
            return None
        elsewhere = self._elsewhere(key_id)
        return self._budgets.over_budget(
            key_id, key.limits, elsewhere, self._now(), wall(), counted=counted
        )

    def come(self, key_id: str, *, counted: bool = False) -> Callable[[], None]:
        """Count a request that begins; return what is to be called once, at its end. `counted`: it
        is one of the minute in which it was submitted, and now runs."""
        self._budgets.came(key_id, self._now(), wall(), counted=counted)
        self._tell()
        self._go_on_telling()

        def leave() -> None:
            """Count the request as ended."""
            self._budgets.left(key_id)
            self._tell()

        return leave

    def spends(self, key_id: str | None, spent: Spent) -> Callable[[], None]:
        """Count the tokens of a request that runs, as it tells them, where its key is one of the
        cluster's; return what is to be called once, at its end."""
        if key_id is None or key_id not in self.book.keys:
            return _nothing
        self._budgets.spends(key_id, spent)

        def settle() -> None:
            """Count the tokens for good."""
            self._budgets.spent(key_id, spent, wall())
            self._go_on_telling()

        return settle

    def heard(self, envelope: Envelope) -> None:
        """Take over what an earlier process of this name had counted."""
        speaker, reading = self._bus.speaker, envelope.message
        is_own = (envelope.node, envelope.process) == (speaker.node, speaker.process)
        is_before = is_own and envelope.boot != speaker.boot and not self._went_on
        if isinstance(reading, KeyUseReading) and is_before:
            self._went_on = True
            self._budgets.take_over(reading, wall())
            self._go_on_telling()

    def use_of(self, key_id: str) -> KeyTotals:
        """Return what is used of a key on all nodes, as far as it is known here."""
        return self._elsewhere(key_id) + self._budgets.totals(key_id, self._now(), wall())

    # --- below ---------------------------------------------------------------------------------

    def _elsewhere(self, key_id: str) -> KeyTotals:
        speaker = self._bus.speaker
        readings = self._readings.key_uses(self._now())
        own = (speaker.node, speaker.process)
        return used_elsewhere(readings, key_id, own, day_of(wall()))

    def _go_on_telling(self) -> None:
        """Tell now and then, for as long as there is anything to tell."""
        if self._telling is None:
            self._telling = self._bus.reactor.every(TELL_S, self._tell_on)

    def _tell_on(self) -> None:
        self._tell()
        if not self._told and self._telling is not None:
            self._telling.cancel()
            self._telling = None

    def _tell(self) -> None:
        """Publish what is used, where that is new or is to be heard again."""
        now, wall_s = self._now(), wall()
        ago_s = now - self._told_at
        if ago_s < APART_S:
            return
        uses = self._budgets.uses(now, wall_s)
        is_busy = any(use.running or use.requests for use in uses)
        if uses == self._told and not (is_busy and ago_s >= REPEAT_S):
            return
        self._told, self._told_at = uses, now
        speaker = self._bus.speaker
        reading = KeyUseReading(
            node=speaker.node, process=speaker.process, day=day_of(wall_s), uses=uses
        )
        self._bus.publish(reading_topic("keys", speaker.node, speaker.process), reading)

    def _now(self) -> float:
        return self._bus.reactor.now()


def _nothing() -> None:
    return
