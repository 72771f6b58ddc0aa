"""Talks to the disk and to uv: `shoal engine ls`, `add`, `rm`.

An environment holds the packages of an engine whose versions clash with shoal's, such as vLLM. It
lies in the data folder of this machine's node. A program of `engines.toml` names it with `venv`.
"""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from bus.models.tasks import ENGINES_FILE, ENVIRONMENT_NAME, CommandEngine, read_engines
from bus.process.installation import ENVIRONMENTS, LOCK, Environment, environment_in, names_in
from bus.wire.errors import ConfigError
from conf.settings import Settings
from gateway.cli.command import Invocation
from gateway.cli.output.amounts import size
from gateway.cli.output.errors import NOT_FOUND, REFUSED, USAGE, CliError
from gateway.cli.verbs.engines.building import Order, alone, build, delete, size_of, users_of
from gateway.cli.verbs.engines.uv import PackageSources, Uv
from gateway.cli.verbs.store.editing import read_text

WITHIN_S = 3_600.0
SHOWN = 3
"""Packages of an environment that are shown by name."""
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\s*\[[\w\s,.-]*\])?\s*(@|[=<>!~;]|$)")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the environment.")]


def ls(invocation: Invocation) -> None:
    """List the environments of this machine: packages, size, Python, and the engines of
    `engines.toml` that use each."""
    settings, output = invocation.settings(), invocation.output
    root, engines = settings.paths.data / ENVIRONMENTS, _engines(settings, invocation)
    documents: list[dict[str, object]] = []
    rows: list[tuple[str, ...]] = []
    for name in names_in(root):
        made = environment_in(root, name)
        bytes_, users = size_of(root / name), _users(engines, name)
        processes, python = sorted(users_of(root / name)), made.python if made else ""
        documents.append(
            {
                "name": name,
                "complete": made is not None,
                "packages": made.packages if made else (),
                "installed": made.pins if made else 0,
                "python": python,
                "size_bytes": bytes_,
                "engines": users,
                "processes": processes,
                "lock": str(made.built / LOCK) if made else "",
            }
        )
        shown = name, _packages(made), size(bytes_), python or "-", ", ".join(users) or "-"
        rows.append((*shown, "yes" if processes else "no"))
    missing = sorted(
        {
            each.venv
            for each in engines.values()
            if each.venv and not environment_in(root, each.venv)
        }
    )
    output.document({"environments": documents, "missing": missing})
    if rows:
        output.table(("name", "packages", ">size", "python", "engines", "runs"), rows)
    else:
        output.say("no environments; make one with `shoal engine add NAME PACKAGE==VERSION`")
    for name in missing:
        output.warn(f"{ENGINES_FILE} names the environment {name}, which does not exist")


def add(
    invocation: Invocation,
    name: Name,
    sources: PackageSources,
    packages: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PACKAGE==VERSION]...", help="Packages to install."),
    ] = None,
    lock: Annotated[
        str | None,
        typer.Option("--lock", metavar="FILE", help="Install the pins of this file, with hashes."),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="VERSION", help="Python version; default: shoal's."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an existing environment.")
    ] = False,
    within: Annotated[
        float, typer.Option("--within", min=1, metavar="SECONDS", help="Deadline in seconds.")
    ] = WITHIN_S,
) -> None:
    """Make an environment with uv: choose versions of the packages and of all that they need, pin
    them with hashes, and install exactly these."""
    settings, output = invocation.settings(), invocation.output
    _check(name, packages or [], lock)
    root = settings.paths.data / ENVIRONMENTS
    text = read_text(lock) if lock is not None else ""
    order = Order(
        name, tuple(packages or ()), text, python or sys.executable, tuple(sources.words())
    )
    with alone(root) as lock_fd, output.waiting() as show:

        def showing(words: str) -> None:
            show(f"{name}: {words}")

        uv = Uv(root, within, showing, lock_fd=lock_fd, offline=settings.offline)
        before = environment_in(root, name)
        if before is not None and not replace:
            remedy = f"replace it with --replace, or delete it with `shoal engine rm {name}`"
            raise CliError(f"{name} exists: {_packages(before)}", remedy=remedy, code=REFUSED)
        made = build(root, order, uv, showing)
    bytes_ = size_of(made.built)
    output.document(
        {"name": name, "packages": made.packages, "installed": made.pins, "python": made.python,
         "size_bytes": bytes_, "lock": str(made.built / LOCK)}
    )  # fmt: skip
    output.say(f"made {name}: {_packages(made)}, Python {made.python}, {size(bytes_)}")
    if before is not None and users_of(before.built):
        output.note("a running program uses the earlier packages until it is unloaded")
    if not _users(_engines(settings, invocation), name):
        output.note(f'to use it, write `venv = "{name}"` into a table of {ENGINES_FILE}')


def rm(
    invocation: Invocation,
    name: Name,
    force: Annotated[
        bool,
        typer.Option("--force", help="Delete the environment even if a running program uses it."),
    ] = False,
) -> None:
    """Delete an environment. An environment that a running program uses is not deleted without
    --force."""
    settings, output = invocation.settings(), invocation.output
    root, engines = settings.paths.data / ENVIRONMENTS, _engines(settings, invocation)
    if name not in names_in(root):
        raise CliError(
            f"there is no environment {name}", remedy="see `shoal engine ls`", code=NOT_FOUND
        )
    with alone(root):
        users = users_of(root / name)
        if users and not force:
            loaded = " ".join(_users(engines, name)) or "MODEL"
            words = ", ".join(f"{title} ({pid})" for pid, title in sorted(users.items()))
            raise CliError(
                f"{name} is in use by {words}",
                remedy=f"unload it with `shoal stop {loaded}`, or add --force",
                code=REFUSED,
            )
        freed = size_of(root / name)
        delete(root, name)
    output.document({"name": name, "freed_bytes": freed, "processes": sorted(users)})
    output.say(f"deleted {name}: {size(freed)} freed")
    for engine in _users(engines, name):
        output.warn(f"the engine {engine} names this environment and can no longer be loaded")


def _check(name: str, packages: list[str], lock: str | None) -> None:
    """Raise CliError if the arguments of `add` do not make sense."""
    if not re.fullmatch(ENVIRONMENT_NAME, name):
        remedy = "use lower-case letters, digits, `.`, `_` and `-`; begin with a letter or digit"
        raise CliError(f"{name!r} cannot name an environment", remedy=remedy, code=USAGE)
    if bool(packages) == (lock is not None):
        text = "give either packages or --lock FILE"
        raise CliError(text, remedy=f"`shoal engine add {name} PACKAGE==VERSION`", code=USAGE)
    for package in packages:
        if "\n" in package or not _REQUIREMENT.match(package):
            remedy = "write PACKAGE==VERSION; for a file, put it into a folder for --find-links"
            raise CliError(f"{package!r} does not name a package", remedy=remedy, code=USAGE)


def _engines(settings: Settings, invocation: Invocation) -> dict[str, CommandEngine]:
    """Return the engines of this node's `engines.toml`; none if it cannot be read."""
    file = settings.paths.config / ENGINES_FILE
    try:
        return read_engines(file.read_text()).engines
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        invocation.output.warn(f"{file} cannot be used: {error}")
        return {}


def _users(engines: dict[str, CommandEngine], name: str) -> list[str]:
    return sorted(engine for engine, each in engines.items() if each.venv == name)


def _packages(environment: Environment | None) -> str:
    if environment is None:
        return "not complete; add the environment again, or delete it"
    named = ", ".join(environment.packages[:SHOWN])
    more = environment.pins - min(SHOWN, len(environment.packages))
    return f"{named} and {more} more" if more > 0 else named
