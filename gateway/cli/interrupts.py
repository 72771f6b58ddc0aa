"""Talks to the operating system: while the command line is still loading its modules, Ctrl-C ends
the process silently.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Generator

from gateway.cli.exit_codes import INTERRUPTED


@contextlib.contextmanager
def silent_interrupts() -> Generator[None]:
    """End the process silently if the user interrupts it inside the block.

    The block is meant for imports, where a traceback would not help the user. This does nothing
    outside the main thread, or if SIGINT is ignored or has another handler.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
