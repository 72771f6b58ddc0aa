"""Prompts that are computed for other nodes end when their KV is on the disk."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from runner.lead.prompt_kv import MOST_S, PromptKv
from tests.harness.scheduling import prepared


class Site:
    """A loop whose files take a while, and a reactor in virtual time."""

    def __init__(self) -> None:
        self.at, self.is_written, self.flushed = 0.0, False, 0
        self.ends: list[float] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        loop = SimpleNamespace(is_writing=lambda _prompt: not self.is_written)
        reactor = SimpleNamespace(
            now=lambda: self.at,
            later=lambda seconds, call: self.timers.append((self.at + seconds, call)),
        )
        self.kv = PromptKv(cast(Any, loop), cast(Any, reactor), self.flush)

    def flush(self) -> None:
        self.flushed += 1

    def end(self) -> None:
        self.ends.append(self.at)

    def until(self, at: float) -> None:
        while self.timers and self.timers[0][0] <= at:
            self.at, call = self.timers.pop(0)
            call()
        self.at = at


def test_a_request_ends_when_its_kv_is_on_the_disk() -> None:
    site = Site()
    site.kv.write(prepared("a", [1] * 100), site.end)
    site.until(3.0)
    assert site.kv.writing and not site.ends
    site.is_written = True
    site.until(3.5)
    assert len(site.ends) == site.flushed == 1 and not site.kv.writing and not site.timers


def test_a_disk_that_hangs_does_not_hold_it_for_ever() -> None:
    site = Site()
    site.kv.write(prepared("a", [1] * 100), site.end)
    site.until(2 * MOST_S)
    assert MOST_S <= site.ends[0] < MOST_S + 0.1 and not site.kv.writing
