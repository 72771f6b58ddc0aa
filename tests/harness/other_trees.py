"""Other trees of the product, for nodes that run another build than the tests."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.harness.nodes import ROOT, TREE

PACKAGES = ("bus", "conf", "gateway", "master", "runner", "telemetry", "worker")


def raised_tree(folder: Path) -> Path:
    """Copy the product that is tested, with every protocol number one higher; return the copy."""
    tree = folder / "raised"
    for package in PACKAGES:
        leave_out = shutil.ignore_patterns("__pycache__", "make")
        shutil.copytree(TREE / package, tree / package, ignore=leave_out)
    shutil.copy(TREE / "pyproject.toml", tree)
    file = next((tree / "bus").rglob("messages/wire.py"))
    text, count = re.subn(
        r"^(PROTOCOL\w*) = (\d+)$",
        lambda found: f"{found[1]} = {int(found[2]) + 1}",
        file.read_text(),
        flags=re.MULTILINE,
    )
    assert count, f"{file} sets a protocol number"
    file.write_text(text)
    return tree


def tree_of(commit: str, folder: Path, *more: str) -> Path | None:
    """Return the product as it was at a commit, and `more` folders; None where the history does not
    hold it."""
    words = ["git", "-C", str(ROOT), "archive", commit, *PACKAGES, *more, "pyproject.toml"]
    made = subprocess.run(words, capture_output=True, check=False)
    if made.returncode != 0:
        return None
    tree = folder / commit
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(tree, filter="data")
    return tree
