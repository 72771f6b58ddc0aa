"""Files that share a cluster run one after the other in one process, so each may name but one."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import WHOLE_NODES
from tests.harness.shared_files import ALONE_IN_A_PROCESS, SHARED, shared_by

FILES = [file for folder in WHOLE_NODES for file in folder.glob("test_*.py")]


def test_a_file_shares_at_most_one_of_them() -> None:
    assert {file.name: names for file in FILES if len(names := named(file)) > 1} == {}


def test_each_of_them_is_shared_by_several_files() -> None:
    users = {name: [one for one in FILES if shared_by(one) == name] for name in ALONE_IN_A_PROCESS}
    assert all(len(files) > 1 for files in users.values()), users


def named(file: Path) -> set[str]:
    return {found[1] for found in SHARED.finditer(file.read_text())}
