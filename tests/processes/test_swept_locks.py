"""A node's locks outlive those who sweep old files out of temporary folders."""

from __future__ import annotations

import fcntl
import os

import pytest

from conf.settings import load_settings
from tests.harness.nodes import Node

pytestmark = pytest.mark.proof


@pytest.mark.parametrize("above", [False, True])
def test_a_sweeper_passes_by_the_folders_of_a_running_node(node: Node, above: bool) -> None:
    paths = load_settings(home=node.home).paths
    folder = paths.runtime.parent if above else paths.runtime
    assert paths.preloads.parent == folder if above else list(folder.glob("*.role"))
    held = os.open(folder, os.O_RDONLY)
    try:
        # systemd-tmpfiles does this to each folder, and leaves alone the one that it cannot lock
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    finally:
        os.close(held)
    raise AssertionError(f"{folder} is not locked: a sweeper takes the lock files in it")
