"""Talks to the operating system: turns a forked child of supervisord into a service.

The child becomes what `execve` would have made: signals, environment, standard streams, arguments
and title are those of a new interpreter. The child ends with `os._exit`, so that it never returns
into supervisord's code. The objects of supervisord stay referenced, so that no finalizer closes a
file number that the service uses by then.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn, TextIO

import setproctitle

_KEPT: list[object] = []
"""supervisord's own streams. They stay referenced, because Python would flush a released stream."""
INTERRUPTED = 130


def become(package: str, argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Run a package as `python -m` does, in the environment `env`, and exit with its code. Signals
    are already reset, and all descriptors but the first three closed."""
    code = 1
    try:
        gc.freeze()
        setproctitle.getproctitle()  # it finds the title only before the environment changes
        set_environment(env)
        open_streams(unbuffered=bool(env.get("PYTHONUNBUFFERED")))
        sys.argv, sys.orig_argv = [""], list(argv)
        setproctitle.setproctitle(" ".join(argv))
        code = run(package)
        finish()
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def reset_signals(mask: set[signal.Signals]) -> None:
    """Set signals as `execve` and a new interpreter do. Caught signals get their default, ignored
    ones stay ignored; then only `mask` is blocked."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def set_environment(env: Mapping[str, str]) -> None:
    """Replace the environment, and reset all values derived from the old one."""
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    time.tzset()


def open_streams(*, unbuffered: bool) -> None:
    """Open the standard streams again, as `python` does at its start (`unbuffered`: `python -u`),
    with this interpreter's encodings."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old: TextIO = getattr(sys, f"__{name}__")
        _KEPT.extend([old, getattr(sys, name)])
        fresh = io.TextIOWrapper(
            open(  # noqa: SIM115 - it stays open
                number, "wb" if number else "rb", 0 if unbuffered and number else -1, closefd=False
            ),
            old.encoding,
            old.errors,
            newline="\n" if number else None,
            line_buffering=not unbuffered and os.isatty(number),
            write_through=unbuffered,
        )
        setattr(sys, name, fresh)
        setattr(sys, f"__{name}__", fresh)


def run(package: str) -> int:
    """Run `__main__` of a package. Return the exit code that an interpreter would return."""
    try:
        runpy.run_module(package, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return (left.code or 0) & 0xFF
        sys.stderr.write(f"{left.code}\n")
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def finish() -> None:
    """End as an interpreter does: wait for threads, call exit handlers, flush the streams."""
    threading._shutdown()  # pyright: ignore
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
