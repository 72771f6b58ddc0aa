"""Talks to the disk: the environments of packages that programs of `engines.toml` run in.

An environment is a folder `<root>/NAME`. Its file `environment.json` is written last, in one step,
and names the build in force: a folder beside it with `venv` and the pinned, hashed
`requirements.txt`. So a build that was interrupted is never used.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

ENVIRONMENTS = "engines"
"""The folder of environments, in a node's data folder."""
MANIFEST, LOCK, VENV = "environment.json", "requirements.txt", "venv"
PATH, ACTIVE = "PATH", "VIRTUAL_ENV"
_INTERPRETER = ("PYTHONHOME", "PYTHONPATH")
"""Variables that would let a program load packages of other environments."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A complete environment. `packages`: the packages that the user named, pinned; all of them if
    the user gave a file of pins. `pins`: how many packages are installed. `python`: its version.
    `made_at_s`: wall clock. `build`: the folder in force, inside `folder`."""

    name: str
    folder: Path
    build: str
    packages: tuple[str, ...]
    pins: int
    python: str
    made_at_s: float

    @property
    def built(self) -> Path:
        """Return the folder of the build in force."""
        return self.folder / self.build

    @property
    def venv(self) -> Path:
        """Return the virtual environment."""
        return self.built / VENV

    def variables(self, given: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a program in this environment: those `given` to every program,
        and its `own`. The environment's `bin` is first on PATH."""
        others = {name: text for name, text in given.items() if name not in _INTERPRETER}
        others.update(own)
        path = os.pathsep.join(filter(None, (str(self.venv / "bin"), others.get(PATH))))
        return {**others, PATH: path, ACTIVE: str(self.venv)}


def environment_in(root: Path, name: str) -> Environment | None:
    """Return the environment of this name; None if there is none, or it is not complete."""
    folder = root / name
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        facts = cast(dict[str, Any], json.loads((folder / MANIFEST).read_bytes()))
        environment = Environment(
            name,
            folder,
            str(facts["build"]),
            tuple(map(str, facts["packages"])),
            int(facts["pins"]),
            str(facts["python"]),
            float(facts["made_at_s"]),
        )
        return environment if os.access(environment.venv / "bin" / "python", os.X_OK) else None
    return None


def names_in(root: Path) -> list[str]:
    """Return the names of all environments, complete or not, in alphabetical order."""
    try:
        return sorted(each.name for each in os.scandir(root) if each.is_dir() and _shown(each.name))
    except FileNotFoundError:
        return []


def write_manifest(environment: Environment) -> None:
    """Put the environment's build in force. A crash leaves the earlier build in force."""
    facts = asdict(environment)
    del facts["folder"]
    draft = environment.folder / f"{MANIFEST}.new"
    with open(draft, "w") as file:
        json.dump(facts, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, environment.folder / MANIFEST)


def _shown(name: str) -> bool:
    return not name.startswith(".")
