"""Talks to the disk: reads the files that shoal's installer left."""

from __future__ import annotations

import functools
import sys
from importlib import metadata
from pathlib import Path

from bus.process.installation.commands import Command, add_command, pip_command
from bus.process.installation.kinds import DISTRIBUTION, Evidence, Installation, installation_of

CACHE_TAG = "CACHEDIR.TAG"


@functools.cache
def own_installation() -> Installation:
    """Return how the running shoal was installed."""
    installed = list(metadata.distributions(name=DISTRIBUTION))
    # a build leaves metadata without an installer in the folder of the code
    installed.sort(key=lambda each: each.read_text("INSTALLER") is None)
    distribution = installed[0] if installed else None
    return installation_of(evidence_in(Path(sys.prefix), sys.executable, distribution))


def command_to_add(package: str) -> str:
    """Return the command line that adds a package to the environment of the running shoal."""
    return add_command(own_installation(), package)


def own_pip(verb: str, *words: str) -> Command:
    """Return the command that calls pip, or uv's pip, on the environment of the running shoal."""
    return pip_command(own_installation(), verb, *words)


def evidence_in(prefix: Path, python: str, distribution: metadata.Distribution | None) -> Evidence:
    """Return the texts of the files that installers left in the environment `prefix`, and beside
    the metadata of `distribution`."""

    def read(name: str) -> str:
        return (distribution.read_text(name) if distribution is not None else None) or ""

    return Evidence(
        python=python,
        prefix=str(prefix),
        # uv also marks each environment of its own
        in_cache=any((folder / CACHE_TAG).is_file() for folder in prefix.parents),
        installer=read("INSTALLER").strip(),
        direct_url=read("direct_url.json"),
        uv_receipt=_text(prefix / "uv-receipt.toml"),
        pipx_metadata=_text(prefix / "pipx_metadata.json"),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
