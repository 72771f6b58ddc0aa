"""Memory for one model, full of batch requests: an urgent one for another model does not wait for
their ends, and each of them goes on where it was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.harness.nodes import ROOT, Node, Stream, eventually, running_node
from tests.processes.conftest import PROVING

pytestmark = pytest.mark.proof

ROWS, FLOOD = 2, 3
TOKENS = 2000 if PROVING else 800


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("models")
    for name in ("first", "second"):
        shutil.copytree(
            ROOT / "conf" / "tiny", folder / name, ignore=shutil.ignore_patterns("make", "*.py")
        )
    with running_node(
        SHOAL_MODEL_FOLDERS=str(folder),
        SHOAL_SLOTS="1",
        SHOAL_PRELOAD="",
        SHOAL_HTTP_PROCESSES="2",
        SHOAL_RUNNER__MAX_ROWS=str(ROWS),
        SHOAL_POOL__TURN_S="1000",
    ) as made:
        yield made


def batch(node: Node, number: int) -> Stream:
    return node.stream(
        f"Tell me about {number} boats.",
        model="first",
        max_tokens=TOKENS,
        ignore_eos=True,
        temperature=0.9 if number % 2 else 0,
        frequency_penalty=0.3,
        seed=number,
        x_priority="batch",
    )


def urgent(node: Node, model: str) -> Stream:
    return node.stream("Count.", model=model, max_tokens=4, x_priority="urgent")


def test_urgent_is_answered_before_the_flood_ends_and_the_flood_says_what_it_says_alone(
    node: Node,
) -> None:
    alone = [batch(node, number) for number in range(FLOOD)]
    for stream in alone:
        assert stream.wait(170).finish == "length", stream.error
    flood = [batch(node, number) for number in range(FLOOD)]
    eventually(lambda: sum(len(one.at) > 5 for one in flood) >= ROWS, 60, "the rows are taken")
    first = urgent(node, "second").wait(120)
    assert first.status == 200 and first.error is None, first.error
    had = [sum(at < first.at[0] for at in one.at) for one in flood]
    went_on = [stream.wait(170) for stream in flood]
    print(f"urgent after {first.at[0] - first.started_at:.1f} s; the flood had {had} pieces then")
    assert all(count < TOKENS for count in had) and sum(count > 0 for count in had) >= ROWS
    for stream, undisturbed in zip(went_on, alone, strict=True):
        assert stream.status == 200 and stream.error is None, stream.error
        assert (stream.ends, stream.done, stream.finish) == (1, True, "length")
        assert stream.text == undisturbed.text
        assert stream.usage is not None and undisturbed.usage is not None
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert stream.usage[name] == undisturbed.usage[name]
        assert any("second" in one for one in stream.comments), "it is told why it waits"


def test_one_that_waits_to_go_on_is_stopped_with_what_it_has(node: Node) -> None:
    flood = [batch(node, number) for number in range(ROWS)]
    for stream in flood:
        stream.flowing(5)
    eventually(
        lambda: urgent(node, "second").wait(120).status == 200, 120, "the other model is loaded"
    )
    waiting = [one for one in node.http.get("/queue").json()["requests"] if one["tokens"]]
    assert len(waiting) == ROWS
    for one in waiting:
        node.http.post(f"/v1/cancel/{one['request']}")
    for stream in flood:
        stream.wait(170)
        assert stream.ends == 1 and stream.done and stream.error is None, stream.error
