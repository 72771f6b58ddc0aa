"""What all tests share: an example of a property may take as long as it likes, and tests of whole
nodes or groups are slow: they run in pairs, a file beside a file."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx._transports.default as httpx_transports
import pytest
from hypothesis import settings

from tests.harness.blas_of_tests import taken_out
from tests.harness.cpu_of_files import CpuOfFiles
from tests.harness.shared_files import ALONE_IN_A_PROCESS, FilesThatShare, shared_by

# Each call of `httpx.get` would read the system's certificates, 50 ms of a processor.
once_read = functools.cache(httpx_transports.create_ssl_context)  # pyright: ignore[reportPrivateImportUsage]
httpx_transports.create_ssl_context = once_read  # pyright: ignore[reportPrivateImportUsage]

EXAMPLES = 100 if os.environ.get("SHOAL_PROVE") else 60
"""Of a property that asks for no number."""
settings.register_profile("untimed", deadline=None, max_examples=EXAMPLES)
settings.load_profile("untimed")

HERE = Path(__file__).parent
WHOLE_NODES = [HERE / name for name in ("browser", "clients", "processes")]
NODES_S = 240
"""A test that is the first to need nodes waits for their start, too: on a new machine libraries are
compiled and measured in it."""
RANKS = ("test_group",)
LONGEST = ("cluster_meeting", "crash_loops", "faults")
"""Of the files that run in pairs those to begin with, so that none is left to end alone."""
CPU_OF_FILES = CpuOfFiles()


def pytest_configure(config: pytest.Config) -> None:
    taken_out(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without collecting garbage, which is a sixth of the time, and look at none
    of what has come to be later: it stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _has_nodes(item.path):
            item.add_marker("slow")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(NODES_S))
            item.add_marker("nodes")
        elif item.path.stem.startswith(RANKS) and item.path.parent == HERE / "runner":
            item.add_marker("nodes")
    items.sort(key=lambda item: _turn(item.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Note the CPU seconds of a file after the last of its tests that run in a row."""
    said = yield
    if nextitem is None or nextitem.path != item.path:
        of = str(item.path.relative_to(HERE.parent))
        CPU_OF_FILES.note(of, daemons=item.get_closest_marker("nodes") is not None)
    return said


@functools.cache
def _has_nodes(path: Path) -> bool:
    return any(map(path.is_relative_to, WHOLE_NODES))


@functools.cache
def _turn(path: Path) -> int:
    """Files that share a cluster come first, one after the other, then those that take longest."""
    shared = _shared(path)
    if shared:
        return ALONE_IN_A_PROCESS.index(shared)
    return len(ALONE_IN_A_PROCESS) + (path.stem.removeprefix("test_") not in LONGEST)


def _shared(path: Path) -> str:
    return shared_by(path) if _has_nodes(path) else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesThatShare | None:
    """Files that share a cluster are run by one process, where whole files are dealt out."""
    return FilesThatShare(config, log) if config.getoption("dist") == "loadfile" else None
