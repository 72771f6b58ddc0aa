"""How fast a counter grows, over a sliding window of samples.

Pure: instants arrive as arguments. A counter that goes backwards belongs to a new life of
what is measured, so the window starts anew; a single sample has no rate.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Samples (instant, value) of one counter, oldest first, no older than `span_s` but for
    one, so that the rate always covers the whole span."""

    span_s: float
    samples: tuple[tuple[float, float], ...] = ()

    def add(self, at: float, value: float) -> Window:
        """The window with one more sample; a sample that is not newer changes nothing."""
        if self.samples and at <= self.samples[-1][0]:
            return self
        if self.samples and value < self.samples[-1][1]:
            return Window(self.span_s, ((at, value),))
        kept = (*self.samples, (at, value))
        while len(kept) > 2 and kept[1][0] <= at - self.span_s:
            kept = kept[1:]
        return Window(self.span_s, kept)

    @property
    def per_s(self) -> float:
        """Growth per second between the oldest and the newest sample; 0.0 for fewer than two."""
        if len(self.samples) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self.samples[0], self.samples[-1]
        return (last - first) / (last_at - first_at)


class Rates:
    """One window per key, and keys that were not sampled last are forgotten with `keep`."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._windows: dict[object, Window] = {}

    def rate(self, key: object, at: float, value: float) -> float:
        """Add a sample of `key` and answer its rate per second."""
        window = self._windows.get(key, Window(self._span_s)).add(at, value)
        self._windows[key] = window
        return window.per_s

    def keep(self, keys: set[object]) -> None:
        """Forget every key that is not in `keys`."""
        self._windows = {key: window for key, window in self._windows.items() if key in keys}
