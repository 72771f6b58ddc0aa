"""Sources that tell, fail and hang: each costs its own figures alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bus.wire.accelerators import AcceleratorReading, HardwareReading, UntoldFigures
from bus.wire.ids import NodeId
from telemetry.hardware import HardwareWatch, Sensed, SensorSource, WatchTiming
from tests.harness.gateway_testbed import eventually

NODE = NodeId("n1")
CARD = AcceleratorReading(vendor="amd", device="card0", power_w=9.0)


class Says:
    """A source that looks by calling a function."""

    period_s = 0.01

    def __init__(self, name: str, look: Callable[[], Sensed]) -> None:
        self.name = name
        self._look = look
        self.looks = 0

    def read(self, at: float) -> Sensed:
        self.looks += 1
        return self._look()


@contextmanager
def watching(*sources: SensorSource, silent_s: float = 60.0) -> Iterator[HardwareWatch]:
    made = HardwareWatch(NODE, sources, WatchTiming(silent_s=silent_s))
    try:
        yield made
    finally:
        made.close()


def told(watch: HardwareWatch, fits: Callable[[HardwareReading], object]) -> HardwareReading:
    """The first reading that fits."""
    return eventually(lambda: reading if fits(reading := watch.reading()) else None, 20, "it fits")


def test_what_all_sources_tell_is_one_reading() -> None:
    untold = UntoldFigures(source="processor", why="power: root alone")
    processor = Says("processor", lambda: Sensed(cpu_temperature_c=61.0, untold=(untold,)))
    with watching(Says("amd", lambda: Sensed((CARD,))), processor) as watch:
        reading = told(watch, lambda found: found.accelerators and found.cpu_temperature_c)
    assert (reading.node, reading.accelerators, reading.untold) == (NODE, (CARD,), (untold,))
    assert reading.cpu_power_w is None


def test_a_source_that_fails_is_told_with_its_error_and_the_rest_is_told() -> None:
    broken = [True]

    def look() -> Sensed:
        if broken:
            raise OSError("GPU is lost")
        return Sensed((CARD,))

    well = Says("processor", lambda: Sensed(cpu_power_w=85.0))
    with watching(Says("amd", look), well) as watch:
        reading = told(watch, lambda found: found.untold and found.cpu_power_w)
        assert reading.accelerators == ()
        assert reading.untold == (UntoldFigures(source="amd", why="OSError: GPU is lost"),)
        broken.clear()
        assert told(watch, lambda found: found.accelerators).untold == ()


def test_a_look_that_never_ends_leaves_out_its_source_alone_until_it_is_over() -> None:
    free, hang = threading.Event(), threading.Event()

    def look() -> Sensed:
        if hang.is_set():
            free.wait(60)
        return Sensed((CARD,))

    stuck, well = Says("amd", look), Says("processor", lambda: Sensed(cpu_power_w=85.0))
    with watching(stuck, well, silent_s=0.05) as watch:
        told(watch, lambda found: found.accelerators)
        hang.set()
        reading = told(watch, lambda found: found.untold)
        assert (reading.accelerators, reading.cpu_power_w) == ((), 85.0)
        assert "has taken more than 0.05 s" in reading.untold[0].why
        looks, before = stuck.looks, well.looks
        eventually(lambda: well.looks > before + 5, 20, "the other is looked at")
        assert stuck.looks == looks, "no second look begins beside one that hangs"
        hang.clear()
        free.set()
        assert told(watch, lambda found: found.accelerators).untold == ()


def test_a_watch_that_is_closed_looks_no_more() -> None:
    source = Says("amd", lambda: Sensed())
    with watching(source):
        eventually(lambda: source.looks, 20, "the first look")
    threads = [one for one in threading.enumerate() if one.name == "sensors-amd"]
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
