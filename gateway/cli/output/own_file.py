"""Talks to the disk: writes a file that only its owner may read."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.cli.output.errors import CliError


def write_own(path: Path, content: bytes, *, replace: bool) -> None:
    """Write a file with mode 0600. `replace`: overwrite an existing file, otherwise refuse. Raises
    CliError."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL)
    try:
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(content)
    except OSError as error:
        remedy = "choose another file with -o"
        raise CliError(f"cannot write {path}: {error.strerror}", remedy=remedy) from error
