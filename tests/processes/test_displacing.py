"""A runner full of batch requests on a real node: urgent ones are answered, and all others too."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.harness.nodes import Node, Stream, eventually, running_node
from tests.processes.conftest import PROVING

ROWS, QUEUE = 2, 3
ROW_TOKENS, TOKENS = 2500 if PROVING else 600, 60
"""Of the requests that have the rows, which go on while the rest comes; and of those that wait."""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running_node(
        SHOAL_RUNNER__MAX_ROWS=str(ROWS),
        SHOAL_RUNNER__MAX_WAITING=str(QUEUE),
        SHOAL_HTTP_PROCESSES="2",
    ) as made:
        eventually(made.ready, 30, "ready")
        yield made


def batch(node: Node, number: int, tokens: int = TOKENS) -> Stream:
    return node.stream(
        f"Tell me about {number} boats.",
        max_tokens=tokens,
        ignore_eos=True,
        x_priority="batch",
        x_client_id="me",
    )


def urgent(node: Node) -> Stream:
    return node.stream("Count.", max_tokens=4, x_priority="urgent", x_client_id="me")


def fill(node: Node) -> list[Stream]:
    """Have batch requests take all rows and places, and one more refused."""
    streams = [batch(node, number, ROW_TOKENS).flowing(1) for number in range(ROWS)]
    streams += [batch(node, ROWS + number) for number in range(QUEUE)]
    eventually(lambda: _waiting(node) == QUEUE, 20, "all places are taken")
    refused = batch(node, 99).wait(20)
    assert refused.status == 429 and refused.error is not None
    assert refused.error["code"] == "queue_full"
    return streams


def _waiting(node: Node) -> int:
    return sum(one["waiting"] for one in node.http.get("/queue").json()["instances"])


@pytest.mark.proof
def test_urgent_requests_are_answered_and_all_batch_ones_once_and_whole(node: Node) -> None:
    tokens = [ROW_TOKENS] * ROWS + [TOKENS] * QUEUE
    alone = [batch(node, number, most).wait(90).text for number, most in enumerate(tokens)]
    streams = fill(node)
    first = [urgent(node) for _ in range(QUEUE)]
    for stream in first:
        stream.wait(60)
        assert stream.status == 200 and stream.error is None, stream.error
        assert stream.ends == 1 and stream.done
    told = [any("more urgent" in one for one in stream.comments) for stream in streams]
    print(f"urgent after {[round(one.at[0] - one.started_at, 2) for one in first]} s; told {told}")
    for stream, most in zip(streams, tokens, strict=True):
        stream.wait(120)
        assert stream.status == 200 and stream.error is None, stream.error
        assert stream.ends == 1 and stream.done and stream.finish == "length"
        assert stream.usage is not None and stream.usage["completion_tokens"] == most
    assert [stream.text for stream in streams] == alone
    assert sum(told) >= 1, "those who gave their places know why they wait"


@pytest.mark.proof
def test_one_that_was_given_back_is_stopped_at_once(node: Node) -> None:
    streams = fill(node)
    first = [urgent(node) for _ in range(QUEUE)]
    back = eventually(
        lambda: [s for s in streams if any("more urgent" in one for one in s.comments)],
        30,
        "one was given back",
    )
    waiting = [
        one for one in node.http.get("/queue").json()["requests"]
        if one["waiting"] and one["priority"] == 50 and one["instance"] is None
    ]  # fmt: skip
    began = time.monotonic()
    for one in waiting:
        node.http.post(f"/v1/cancel/{one['request']}")
    for stream in (*first, *streams):
        stream.wait(120)
        assert stream.ends == 1 and stream.error is None, stream.error
    print(
        f"{len(back)} given back, {len(waiting)} stopped; all over {time.monotonic() - began:.1f} s"
    )
    finishes = [stream.finish for stream in streams]
    assert waiting and len(finishes) - finishes.count("length") == len(waiting), finishes


@pytest.mark.proof
def test_a_batch_request_is_answered_while_urgent_ones_never_end(node: Node) -> None:
    """It asks again though all is taken, and goes first once it has waited for 15 s."""
    over = threading.Event()
    answered: list[float] = []

    def ask_again() -> None:
        while not over.is_set():
            stream = node.stream(
                "Count.",
                max_tokens=TOKENS,
                ignore_eos=True,
                x_priority="urgent",
                x_client_id="me",
            ).wait(60)
            assert stream.status in (200, 429), stream.error
            if stream.status == 200:
                answered.append(time.monotonic())
            else:
                time.sleep(0.05)

    clients = [threading.Thread(target=ask_again, daemon=True) for _ in range(ROWS + QUEUE + 3)]
    rows = [batch(node, number, ROW_TOKENS).flowing(1) for number in range(ROWS)]
    streams = [batch(node, ROWS + number) for number in range(QUEUE)]
    eventually(lambda: _waiting(node) == QUEUE, 20, "all places are taken")
    for client in clients:
        client.start()
    try:
        for stream in (*rows, *streams):
            stream.wait(120)
        before = len(answered)
        eventually(lambda: len(answered) > before, 30, "urgent ones are answered still")
    finally:
        over.set()
        for client in clients:
            client.join(90)
    back = [one for one in streams if any("more urgent" in said for said in one.comments)]
    waited = [round(one.at[0] - one.started_at, 1) for one in streams]
    print(f"{len(back)} of {QUEUE} given back; first tokens after {waited} s, {before} urgent ones")
    assert back
    for stream in streams:
        assert stream.ends == 1 and stream.done and stream.finish == "length", stream.error
