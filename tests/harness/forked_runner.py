"""A runner in a process that `forks` made: it ends as `python -m MODULE` does.

The first word is the module of its program, whose function `main` returns the exit code.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import NoReturn


def main() -> NoReturn:
    """Run a runner. End this process without waiting for its threads, one of which may be stuck."""
    code = import_module(sys.argv.pop(1)).main()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
