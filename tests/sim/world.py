"""Simulated time and a network that loses, delays, repeats, reorders and cuts, from one seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Weather:
    """How bad the network is. Delays are uniform in 0.5 to `delay_s`, some ten times longer."""

    loss: float = 0.0
    twice: float = 0.0
    delay_s: float = 0.005
    late: float = 0.0


class World:
    """A queue of things to happen, in the order of time; equal seeds tell equal stories."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.weather = Weather()
        self.cut: set[tuple[str, str]] = set()
        self.story: list[str] = []
        self.sent = 0
        self.latest = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Have this happen at a time."""
        self._count += 1
        heapq.heappush(self._queue, (max(time, self.now), self._count, action))

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Have this happen after a while."""
        self.at(self.now + delay_s, action)

    def post(self, sender: str, to: str, deliver: Callable[[], None]) -> None:
        """A message from machine to machine; within one it is neither lost nor late."""
        self.sent += 1
        chance, weather = self.chance, self.weather
        if sender == to:
            self.later(0.0002, deliver)
            return
        for _ in range(2 if chance.random() < weather.twice else 1):
            if chance.random() < weather.loss:
                continue
            delay_s = weather.delay_s * (0.5 + 0.5 * chance.random())
            if chance.random() < weather.late:
                delay_s *= 10 + 90 * chance.random()
            self.latest = max(self.latest, self.now + delay_s)
            self.later(delay_s, lambda: self._arrive(sender, to, deliver))

    def tell(self, what: str) -> None:
        """A line of the story."""
        self.story.append(f"{self.now:8.3f} {what}")

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> bool:
        """Let things happen up to a time, or until `stop` holds; whether it did."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            if stop is not None and stop():
                return True
        self.now = until
        return stop is not None and stop()

    def _arrive(self, sender: str, to: str, deliver: Callable[[], None]) -> None:
        if (sender, to) not in self.cut:
            deliver()
