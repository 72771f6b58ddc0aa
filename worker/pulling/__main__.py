"""Talks to the worker that started it: pulls one model, `python -P -m worker.pulling`.

The first line of its input is the order, in JSON; the end of its input is that of the pull, so that
it never outlives its worker. Each line of its output is how far it is (`PullState`).
"""

from __future__ import annotations

import json
import os
import sys
import threading

from bus.wire.messages.readings import PullState
from worker.pulling.order import order_of
from worker.pulling.session import PullSession


def _end_with_worker() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _tell(state: PullState) -> None:
    sys.stdout.write(state.model_dump_json() + "\n")
    sys.stdout.flush()


def main() -> int:
    """Pull what is ordered, and tell how it ended."""
    order = order_of(json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_worker, daemon=True).start()
    _tell(PullSession(order, _tell).run())
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a thread may still wait for the hub
