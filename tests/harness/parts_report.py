"""What a run of the suite says at its end: minutes, counts, the slowest tests, skips. Pure, but for
`tests_of`, which reads pytest's JUnit file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests.harness.counts import KINDS

SLOWEST = 10
DEAREST = 15
NO_CPU = "CPU seconds are not known: this system gives the processes of daemons to nobody else."


@dataclass(frozen=True)
class Test:
    """A test that ran. `skipped` is why it did not, empty where it did."""

    name: str
    took_s: float
    skipped: str
    failed: bool


@dataclass(frozen=True)
class Ran:
    """A part that has ended: pytest's exit status, seconds of the wall and of processors (None:
    unknown), processes that it left behind, what it started, its tests, and CPU seconds by file."""

    name: str
    status: int
    took_s: float
    cpu_s: float | None
    left: tuple[str, ...]
    counts: Counter[str]
    tests: tuple[Test, ...]
    files: Mapping[str, float] = field(default_factory=dict[str, float])


def tests_of(junit: Path) -> tuple[Test, ...]:
    """Return the tests that a JUnit file tells of."""
    return tuple(map(_test, ElementTree.parse(junit).iter("testcase")))


def _test(case: ElementTree.Element) -> Test:
    skip = case.find("skipped")
    why = "" if skip is None or skip.get("type") != "pytest.skip" else skip.get("message", "")
    failed = case.find("failure") is not None or case.find("error") is not None
    name = f"{case.get('classname', '')}::{case.get('name', '')}"
    return Test(name, float(case.get("time", "0")), why, failed)


def report(ran: Sequence[Ran], took_s: float) -> Iterator[str]:
    """Yield the lines of the report of parts that took so long in all: some ran side by side."""
    yield ""
    yield from _table(ran, took_s)
    if any(one.cpu_s is None for one in ran):
        yield NO_CPU
    tests = [test for one in ran for test in one.tests]
    yield f"the {SLOWEST} slowest tests:"
    for test in sorted(tests, key=lambda test: -test.took_s)[:SLOWEST]:
        yield f"  {test.took_s:7.1f} s  {test.name}"
    dearest = sorted((-seconds, name) for one in ran for name, seconds in one.files.items())
    yield from [f"the {DEAREST} files that took most CPU:"] if dearest else []
    for minus_s, name in dearest[:DEAREST]:
        yield f"  {-minus_s:7.1f} s  {name}"
    skips = Counter(test.skipped for test in tests if test.skipped)
    yield "skipped:" if skips else "skipped: none"
    for why, number in skips.most_common():
        yield f"  {number:7}    {why}"
    left = [f"  {one.name}: {process}" for one in ran for process in one.left]
    yield from ["still ran when their part ended, and were killed:", *left] if left else []


def _table(ran: Sequence[Ran], took_s: float) -> Iterator[str]:
    heads = ("part", "minutes", "CPU min", "tests", "failed", "skipped", *KINDS)
    rows = [_row(one.name, [one], one.took_s) for one in ran]
    for row in (heads, *rows, _row("in all", ran, took_s)):
        yield f"{row[0]:14}" + "".join(f"{cell:>10}" for cell in row[1:])


def _row(name: str, ran: Iterable[Ran], took_s: float) -> tuple[str, ...]:
    ran = list(ran)
    tests = [test for one in ran for test in one.tests]
    cpu = [one.cpu_s for one in ran]
    known = [one for one in cpu if one is not None]
    numbers = (
        len(tests),
        sum(test.failed for test in tests),
        sum(bool(test.skipped) for test in tests),
        *(sum(one.counts[kind] for one in ran) for kind in KINDS),
    )
    return (
        name,
        f"{took_s / 60:.1f}",
        f"{sum(known) / 60:.1f}" if len(known) == len(cpu) else "-",
        *(f"{number:,}" for number in numbers),
    )
