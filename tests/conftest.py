"""What all tests share: an example of a property may take as long as it likes, and whatever runs
whole nodes or groups is slow and runs alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

HERE = Path(__file__).parent
WHOLE_NODES = [HERE / name for name in ("clients", "inspection", "processes")]
RANKS = ("test_group", "test_measuring")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in WHOLE_NODES):
            item.add_marker("slow")
            item.add_marker("alone")
        elif item.path.parent == HERE / "runner" and item.path.stem.startswith(RANKS):
            item.add_marker("alone")
