"""Which tests execute each line of the product: a plugin of pytest that writes a map, and the map.

`SHOAL_COVERED=<map.json> SHOAL_COVERED_ROOMS=<room>,<room> python -m pytest -p
tests.harness.covered_lines <tests>`. Lines that only an import executes are of no test. Needs
`coverage`, which is no dependency: `pip install coverage`.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

FEW_EXAMPLES = 20
MOST_TESTS = 25
MOST_OF_ONE = 5
"""So many tests of one function are run at most: the parameters of a test are alike."""


@dataclass(frozen=True)
class CoveredLines:
    """`lines`: tests by file and line. `costs`: CPU seconds of each test."""

    lines: dict[str, dict[int, list[str]]]
    costs: dict[str, float]

    @classmethod
    def read(cls, file: Path) -> CoveredLines:
        """Return a map that the plugin wrote."""
        found = json.loads(file.read_text())
        names: list[str] = found["tests"]
        lines = {
            path: {int(line): [names[one] for one in tests] for line, tests in by_line.items()}
            for path, by_line in found["lines"].items()
        }
        return cls(lines, dict(zip(names, found["costs"], strict=True)))

    def sizes(self) -> Counter[str]:
        """Return how many lines each test executes."""
        every = (tests for by_line in self.lines.values() for tests in by_line.values())
        return Counter(test for tests in every for test in tests)

    def chosen(self, file: str, line: int, sizes: Counter[str]) -> list[str]:
        """Return the tests to run against a mutant of a line: those that execute the fewest lines
        first, at most 25, and at most 5 of one function."""
        found: list[str] = []
        functions: Counter[str] = Counter()
        for test in sorted(self.lines[file].get(line, ()), key=lambda one: (sizes[one], one)):
            function = test.partition("[")[0]
            if len(found) < MOST_TESTS and functions[function] < MOST_OF_ONE:
                functions[function] += 1
                found.append(test)
        return found


class Recorder:
    """Notes which lines of the rooms each test that passes executes."""

    def __init__(self, file: Path, rooms: list[str], root: Path) -> None:
        import coverage  # whoever makes a map has it; it is no dependency

        self.file, self.root = file, root
        self.cover = coverage.Coverage(
            data_file=None, include=[str(root / room / "*.py") for room in rooms], config_file=False
        )
        self.passed: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Note one test's lines under its name."""
        self.cover.switch_context(item.nodeid)
        began = time.process_time()
        result = yield
        self.passed[item.nodeid] = round(time.process_time() - began, 3)
        self.cover.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave out a test that does not pass."""
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Draw few examples, also where a test asks for many: lines are what is looked for."""
        for item in items:
            drawn = getattr(getattr(item, "obj", None), "hypothesis", None)
            if drawn is not None:
                asked = item.obj._hypothesis_internal_use_settings  # pyright: ignore
                few = min(asked.max_examples, FEW_EXAMPLES)
                item.obj._hypothesis_internal_use_settings = settings(asked, max_examples=few)

    def pytest_sessionstart(self) -> None:
        """Begin before anything of the product is imported by a test."""
        self.cover.start()

    def pytest_sessionfinish(self) -> None:
        """Write the map."""
        self.cover.stop()
        names = sorted(set(self.passed) - self.failed)
        numbers = {name: number for number, name in enumerate(names)}
        lines: dict[str, dict[int, list[int]]] = defaultdict(dict)
        data = self.cover.get_data()
        for measured in data.measured_files():
            path = str(Path(measured).relative_to(self.root))
            for line, contexts in data.contexts_by_lineno(measured).items():
                tests = sorted(numbers[one] for one in contexts if one in numbers)
                if tests:
                    lines[path][line] = tests
        costs = [self.passed[name] for name in names]
        self.file.write_text(json.dumps({"tests": names, "costs": costs, "lines": lines}))


def pytest_configure(config: pytest.Config) -> None:
    """Record where a map is asked for."""
    if file := os.environ.get("SHOAL_COVERED"):
        rooms = os.environ["SHOAL_COVERED_ROOMS"].split(",")
        config.pluginmanager.register(Recorder(Path(file), rooms, Path.cwd()), "covered")


def as_json(covered: CoveredLines) -> dict[str, Any]:
    """Return a map as it is written."""
    names = sorted(covered.costs)
    numbers = {name: number for number, name in enumerate(names)}
    lines = {
        path: {str(line): [numbers[one] for one in tests] for line, tests in by_line.items()}
        for path, by_line in covered.lines.items()
    }
    return {"tests": names, "costs": [covered.costs[one] for one in names], "lines": lines}
