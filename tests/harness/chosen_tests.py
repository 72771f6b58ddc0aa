"""A plugin of pytest: runs the tests whose ids begin with one of many, and tells how each ended.

The file `TESTS_CHOSEN` names has their ids, one a line; `TESTS_SAID` names the file of lines of
JSON `{"test", "said"}`, `said` being "" where the test passed. A file that cannot be imported is
told of like a test.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

CHOSEN = tuple(Path(os.environ["TESTS_CHOSEN"]).read_text().split())
OUTCOMES = Path(os.environ["TESTS_SAID"])
"""Read once: tests change the environment."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all others."""
    others = [one for one in items if not one.nodeid.startswith(CHOSEN)]
    items[:] = [one for one in items if one.nodeid.startswith(CHOSEN)]
    config.hook.pytest_deselected(items=others)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Tell of a file that cannot be imported."""
    if report.failed:
        _tell(report.nodeid, _last_words(str(report.longrepr)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell how a test ended: by its call, or by what it needs."""
    if report.when == "call" or report.failed:
        _tell(report.nodeid, _said(report) if report.failed else "")


def _said(report: pytest.TestReport) -> str:
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message) if crash is not None else _last_words(str(report.longrepr))


def _last_words(text: str) -> str:
    """Return the error's own line of a traceback."""
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return lines[-1] if lines else text.strip().splitlines()[-1]


def _tell(test: str, said: str) -> None:
    with OUTCOMES.open("a") as file:
        file.write(json.dumps({"test": test, "said": said}) + "\n")
