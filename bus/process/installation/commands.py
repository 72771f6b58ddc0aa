"""The commands that upgrade shoal or add a package, for each kind of installation.

Pure: nothing is run. Commands are tuples of words.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from bus.process.installation.kinds import DISTRIBUTION, Installation

Command = tuple[str, ...]
WHEEL = "WHEEL"
"""A placeholder in commands, for the path of a wheel that is not known yet."""
INSTALL = "uv tool install"
_VERSION = re.compile(rf"{DISTRIBUTION.replace('-', '_')}-(\d+(?:\.\d+)*)[^/-]*-py3-none-any\.whl")


@dataclass(frozen=True, slots=True)
class NewWheel:
    """A wheel of shoal on the disk. `constraints`: the file beside it that pins the tested versions
    of other packages; empty if there is none."""

    path: str
    version: str
    constraints: str = ""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The commands that upgrade shoal, in their order. `note` says what the user must do besides,
    or why there are no commands."""

    commands: tuple[Command, ...]
    note: str = ""


def version_of(file_name: str) -> str:
    """Return the version in the name of a wheel of shoal; empty for any other file."""
    match = _VERSION.fullmatch(file_name)
    return "" if match is None else file_name.split("-")[1]


def in_order(version: str) -> tuple[int, ...]:
    """Return a key that sorts versions: their leading numbers."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def upgrade_of(installation: Installation, installed: str, wheel: NewWheel | None) -> Upgrade:
    """Return how to upgrade. `installed` is the version in use; `wheel` is the wheel to install, if
    it is known."""
    kind, source = installation.kind, installation.source
    if kind == "temporary":
        note = f"the next run can use another version; `{INSTALL} {WHEEL}` installs shoal for good"
        return Upgrade((), note)
    if kind == "unknown":
        tool = installation.installer or "the tool that installed it"
        return Upgrade((), f"upgrade it with {tool}")
    if wheel is not None:
        return Upgrade(_installs(installation, wheel, again=wheel.version == installed))
    if installation.is_folder:
        return Upgrade((("git", "-C", source, "pull"), *_from_folder(installation)))
    if source and not source.endswith(".whl"):
        return Upgrade(_installs(installation, NewWheel(source, ""), again=True))
    if source:
        new = NewWheel(WHEEL, "")
        return Upgrade(_installs(installation, new, again=False), "put the new wheel's path there")
    return Upgrade((_from_index(installation),))


def add_command(installation: Installation, package: str) -> str:
    """Return the command line that adds a package to shoal's environment."""
    kind = installation.kind
    if kind == "uv tool":
        added = (*installation.added, package)
        return shlex.join(_uv_tool(installation, installation.source or DISTRIBUTION, added))
    if kind == "pipx":
        return shlex.join(("pipx", "inject", installation.name, package))
    return shlex.join(pip_command(installation, "install", package))


def pip_command(installation: Installation, verb: str, *words: str) -> Command:
    """Return the command that calls pip, or uv's pip, on shoal's environment."""
    kind = installation.kind
    if kind == "pipx":
        return ("pipx", "runpip", installation.name, verb, *words)
    # a clone's environment has pip; its uv may be missing on the PATH
    if kind == "uv tool" or (kind != "clone" and installation.installer == "uv"):
        return ("uv", "pip", verb, "--python", installation.python, *words)
    return (installation.python, "-m", "pip", verb, *words)


def _installs(installation: Installation, wheel: NewWheel, *, again: bool) -> tuple[Command, ...]:
    """Return the commands that install a wheel. `again`: its version is installed already, so pip
    would change nothing by itself."""
    pins = ("--constraint", wheel.constraints) if wheel.constraints else ()
    match installation.kind:
        case "uv tool":
            anew = ("--reinstall-package", DISTRIBUTION) if again else ()
            command = _uv_tool(installation, wheel.path, installation.added)
            return ((*command[:3], *pins, *anew, *command[3:]),)
        case "pipx":
            pinned = (f"--pip-args=--constraint {wheel.constraints}",) if pins else ()
            is_editable = installation.is_editable and wheel.path == installation.source
            editable = ("--editable",) if is_editable else ()
            return (("pipx", "install", "--force", *pinned, *editable, wheel.path),)
        case _:
            pass
    first = pip_command(installation, "install", *pins, wheel.path)
    if not again:
        return (first,)
    second = pip_command(installation, "install", "--force-reinstall", "--no-deps", wheel.path)
    return (first, second)


def _uv_tool(installation: Installation, source: str, added: tuple[str, ...]) -> Command:
    extras = f"[{','.join(installation.extras)}]" if installation.extras else ""
    packages = (word for package in added for word in ("--with", package))
    editable = ("--editable",) if installation.is_editable and source == installation.source else ()
    return ("uv", "tool", "install", *packages, *editable, f"{source}{extras}")


def _from_folder(installation: Installation) -> tuple[Command, ...]:
    source = installation.source
    if installation.kind != "clone":
        return _installs(installation, NewWheel(source, ""), again=True)
    if installation.prefix == f"{source}/.venv":
        return (("make", "-C", source, ".venv/.ready"),)
    return (pip_command(installation, "install", "--editable", source),)


def _from_index(installation: Installation) -> Command:
    match installation.kind:
        case "uv tool":
            return ("uv", "tool", "upgrade", DISTRIBUTION)
        case "pipx":
            return ("pipx", "upgrade", installation.name)
        case _:
            return pip_command(installation, "install", "--upgrade", DISTRIBUTION)
