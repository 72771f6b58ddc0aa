"""Builds the wheel from copies of the tree, so that a build leaves nothing in the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from bus.process.installation import PACKAGES
from tests.harness.commands import ROOT

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
OUTSIDE = ("pyproject.toml", "README.md", "LICENSE", "Makefile", "requirements.lock")
"""Files of the tree's root that a build reads."""


def copied_tree(folder: Path, version: str = "") -> Path:
    """Return a new copy of what a build reads; `version` replaces the version."""
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignore)
    for name in OUTSIDE:
        shutil.copy(ROOT / name, folder)
    project = folder / "pyproject.toml"
    if version:
        lines = project.read_text().splitlines(keepends=True)
        project.write_text(
            "".join(f'version = "{version}"\n' if line.startswith("version =") else line
                    for line in lines)
        )  # fmt: skip
    return folder


def built_wheel(folder: Path) -> Path:
    """Build the wheel with this environment's setuptools; without the network. Return its path."""
    tree, made = copied_tree(folder / "tree"), folder / "made"
    made.mkdir()
    subprocess.run(
        [sys.executable, "-P", "-c", BUILD, str(made)], cwd=tree, capture_output=True,
        check=True, timeout=120,
    )  # fmt: skip
    return next(made.glob("*.whl"))
