"""A node that stands still and goes on: a machine that sleeps, a virtual one that is paused. Its
streams go on, HTTP answers within seconds, and no runner is ended for it.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter

import httpx
import pytest

from tests.harness.nodes import Node, Stream, eventually
from tests.processes.conftest import PROVING, Ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

HALTS, HALT_S, STREAMS = (10, 90.0, 16) if PROVING else (1, 4.5, 4)
STORY = "Tell me a long story about fish number {}."
LONG = {"max_tokens": 900 if PROVING else 300, "ignore_eos": True}
PATIENCE_S = 120.0


def told(stream: Stream) -> str:
    """How it ended; an end without words is told as `bare`."""
    if stream.error is not None:
        return f"{stream.error.get('code')}: {stream.error.get('message')}"
    return f"finish {stream.finish}" if stream.done else f"bare: {stream.broken}"


def halted(node: Node, seconds: float) -> float:
    """Stop every process of the node for so long, and let all go on; returns when."""
    tree = node.all_processes()
    for process in tree:
        process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        for process in tree:
            process.send_signal(signal.SIGCONT)
    return time.monotonic()


def answering(node: Node) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{node.url}/health", timeout=5.0).status_code == 200
    return False


def test_streams_of_a_node_that_stood_still_go_on(node: Node, ledger: Ledger) -> None:
    alone = [node.stream(STORY.format(n), **LONG).wait(PATIENCE_S) for n in range(STREAMS)]
    assert all(one.done and one.finish == "length" for one in alone), [told(one) for one in alone]
    runner = node.runner()
    for _ in range(HALTS):
        streams = [node.stream(STORY.format(n), **LONG) for n in range(STREAMS)]
        eventually(lambda some=streams: any(one.at for one in some), PATIENCE_S, "they flow")
        at = halted(node, HALT_S)
        eventually(lambda: answering(node), PATIENCE_S, "HTTP answers")
        seconds = time.monotonic() - at
        for one in streams:
            one.wait(PATIENCE_S)
        ends = Counter(told(one) for one in streams)
        assert ends == {"finish length": STREAMS}, ends
        assert [one.text for one in streams] == [one.text for one in alone]
        assert node.runner() == runner, "its runner lives on"
        assert node.chat("hi", max_tokens=4).status_code == 200
        ledger(
            f"node halted {HALT_S:g} s", saw=str(dict(ends)), seconds=seconds, bound_s=3, reloaded=0
        )
