"""Talks to the worker that started it: pulls one model, `python -P -m worker.pulling`.

The first line of its input is the order, in JSON; a further line resumes a held pull, which waits
after its forecast. The end of its input ends the pull, so it never outlives its worker. Each line
of its output is its progress (`PullState`).
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import NoReturn

from bus.process.logs import Log, log_strays
from bus.wire.messages.readings import PullState
from worker.pulling.order import order_of
from worker.pulling.session import PullSession


def _heed_worker(goes: threading.Event) -> None:
    while sys.stdin.buffer.readline():
        goes.set()
    os._exit(0)


def _tell(state: PullState) -> None:
    sys.stdout.write(state.model_dump_json() + "\n")
    sys.stdout.flush()


def program() -> NoReturn:
    """Run the order, report its result, and end the process with all its threads."""
    log_strays(Log(node="", process="worker"))
    order = order_of(json.loads(sys.stdin.buffer.readline()))
    goes = threading.Event()
    threading.Thread(target=_heed_worker, args=(goes,), daemon=True).start()
    _tell(PullSession(order, _tell, goes).run())
    sys.stdout.flush()
    os._exit(0)  # a thread may still wait for the hub


if __name__ == "__main__":
    program()
