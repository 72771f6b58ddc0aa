"""Talks to the disk: finds the model families that the installed mlx-lm supports.

Lists its files and reads its table of names as text, because only runners import MLX.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from worker.models.passed_over import Unfit, unfit_family

TABLES = ("MODEL_REMAPPING", "MODEL_ARCHITECTURE_REMAPPING")
"""Tables of mlx-lm's `utils.py` that map names to another family's model."""


@dataclass(frozen=True, slots=True)
class Families:
    """The model families of one version of mlx-lm. `renamed` maps a family, or (family,
    architecture), to the family whose implementation it uses."""

    version: str
    names: frozenset[str]
    renamed: Mapping[Any, Any]

    def unfit(self, config: Mapping[str, Any]) -> Unfit | None:
        """Return why this node cannot run a model with this configuration; None if its family is
        supported or not stated."""
        family = config.get("model_type")
        if not isinstance(family, str):
            return None
        kinds = config.get("architectures") or ()
        kinds = (kinds,) if isinstance(kinds, str) else kinds if isinstance(kinds, list) else ()  # pyright: ignore[reportUnknownVariableType]
        meant = {self.renamed.get((family, str(kind))) for kind in kinds}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        if {self.renamed.get(family, family), *meant} & self.names:
            return None
        return unfit_family(config, self.version)


@functools.cache
def installed_families() -> Families | None:
    """Return the families of the installed mlx-lm; None if they cannot be determined."""
    try:
        spec = importlib.util.find_spec("mlx_lm")
        version = metadata.version("mlx-lm")
    except (ImportError, ValueError, metadata.PackageNotFoundError):
        return None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        files = list((Path(place) / "models").glob("*.py"))
        if files:
            names = frozenset(file.stem for file in files if file.stem != "__init__")
            return Families(version, names, _renamed(Path(place) / "utils.py"))
    return None


def _renamed(path: Path) -> dict[Any, Any]:
    names: dict[Any, Any] = {}
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in TABLES:
                names |= ast.literal_eval(node.value)
    return names
