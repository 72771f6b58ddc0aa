"""Talks to the disk: finds the programs that run models in other formats.

A program is looked for, never run: `shoal up` must not wait for it.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

LLAMA_SERVER = "llama-server"
LIBRARY, PROGRAM = "xllamacpp", "runner.llama_program"
"""The package of the extra `llamacpp`, and the module that serves with it."""


def llama_server(chosen: str) -> tuple[str, ...]:
    """Return the command that starts llama-server: the program at `chosen` (the setting) if it is
    not empty, else the one on PATH, else the library of the extra. Empty if there is none, or if
    this system is not Linux (only there does the program certainly end with its runner)."""
    if not sys.platform.startswith("linux"):
        return ()
    if chosen:
        path = str(Path(chosen).expanduser())
        return (path,) if os.access(path, os.X_OK) else ()
    if (found := shutil.which(LLAMA_SERVER)) is not None:
        return (found,)
    return (sys.executable, "-P", "-m", PROGRAM) if find_spec(LIBRARY) is not None else ()
