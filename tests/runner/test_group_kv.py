"""A group that holds KV in fewer bits, or a window of it, says what one rank says that does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.wire.messages.control import AskRunner, RunnerReport
from tests.harness.group_requests import said, text_hand
from tests.harness.ranks import ready_group, stages
from tests.harness.slot import ROOT, FakeGateway, Slot, started_slot

pytestmark = pytest.mark.slow

TINY = ROOT / "conf" / "tiny"


@contextlib.contextmanager
def one_rank(home: Path, kv: str) -> Iterator[FakeGateway]:
    """A gateway of one rank that holds the bundled model."""
    with started_slot(home, TINY, kv=kv) as slot:
        slot.ready()
        with contextlib.closing(FakeGateway(slot)) as gateway:
            yield gateway


def play_alone(gateway: FakeGateway) -> dict[str, list[str]]:
    """Return the texts of each request of `text_hand`, played one after another: in few bits, the
    rounding of another batch can change a text."""
    texts: dict[str, list[str]] = {}
    for one in text_hand():
        stream = gateway.submit(one)
        gateway.ended(stream, seconds=50)
        texts[one.request_id] = said(stream)["text"]
    return texts


def facts(slot: Slot) -> dict[str, str | int | float | bool]:
    """Return what a runner tells of its loaded model."""
    slot.tell(AskRunner(instance=slot.spec.instance))

    def reports() -> list[RunnerReport]:
        """Return those that have come."""
        return [one for one in slot.other if isinstance(one, RunnerReport)]

    slot.until(lambda: bool(reports()), "a report")
    return reports()[-1].facts


@pytest.mark.parametrize(
    ("sharding", "layers", "kv"),
    [
        pytest.param("pipeline", stages(8, 2), "4bit", id="pipeline of 2, 4 bits"),
        pytest.param(
            "tensor", [(0, 8)] * 2, "8bit", id="tensor over 2, 8 bits", marks=pytest.mark.proof
        ),
        pytest.param(
            "pipeline",
            stages(8, 2),
            "window:24",
            id="pipeline of 2, a window",
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "tensor",
            [(0, 8)] * 2,
            "window:24",
            id="tensor over 2, a window",
            marks=pytest.mark.proof,
        ),
    ],
)
def test_a_group_says_what_one_rank_says(tmp_path, sharding, layers, kv) -> None:
    with one_rank(tmp_path, kv) as gateway:
        wanted = play_alone(gateway)
    with ready_group(TINY, sharding, layers, kv=kv) as (slots, gateway):
        assert play_alone(gateway) == wanted
        assert [facts(slot)["kv"] for slot in slots] == [kv, kv]
