"""Nodes that cannot serve a model: one without MLX, and one whose runners are killed while they
load.

Each function returns what such a node is started with: a `sitecustomize` of its own patches what
its processes import. `folder` is to be there for as long as the node runs.
"""

from __future__ import annotations

import importlib.machinery
import os
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mlx", "mlx_lm")
FIRST_OF_A_LOAD = "runner.mlx.engine"
"""What a runner imports when it begins to load a model, and not before."""


def without_mlx(folder: Path) -> dict[str, str]:
    """No process of the node finds MLX, as where it is not installed."""
    return _variables(folder, "hide")


def killed_at_load(folder: Path) -> dict[str, str]:
    """Each runner of the node is killed when it begins to load a model."""
    return _variables(folder, "kill")


def hide() -> None:
    """Have this process not find MLX's packages."""
    sys.meta_path[:] = [_Without if one is PathFinder else one for one in sys.meta_path]


def kill() -> None:
    """Have this process killed when it begins to load a model."""
    sys.meta_path.insert(0, _Killing())


class _Without(PathFinder):
    """Python's own, which does not find MLX's packages."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in PACKAGES:
            return None
        return PathFinder.find_spec(fullname, path, target)


class _Killing(importlib.machinery.BuiltinImporter):
    """Finds nothing."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == FIRST_OF_A_LOAD:
            os.kill(os.getpid(), signal.SIGKILL)
        return None


def _variables(folder: Path, what: str) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    program = f"from tests.harness import unfit_nodes\nunfit_nodes.{what}()\n"
    (folder / "sitecustomize.py").write_text(program)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
