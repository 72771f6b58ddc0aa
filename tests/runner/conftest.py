"""The groups that the files `test_group*.py` share end with the last test of these."""

from __future__ import annotations

import pytest

from tests.harness.shared_groups import SHARED


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close what is shared after the last test of a group."""
    SHARED.close_when_left(nextitem, lambda path: path.stem.startswith("test_group"))


def pytest_sessionfinish() -> None:
    """Close what is shared where the tests were broken off."""
    SHARED.close()
