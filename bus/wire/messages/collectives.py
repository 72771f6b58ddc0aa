"""The collective test: what it is to do, and what each rank found.

Pure. The order is a `CollectiveTest` stamped on an instance that holds no model; findings are
readings, retained for a while after their runner has left. Sizes count elements of four bytes.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.messages.wire import Message

TEST_MODEL = ModelId("collective-test")
"""What stands in place of a model's name in an instance that is a test."""

Mode = Literal["quick", "standard", "stress"]
Backend = Literal["ring", "jaccl"]
TestPhase = Literal["forming", "correctness", "latency", "bandwidth", "done"]


class CollectiveTest(Message):
    """What all ranks do, in this order: a barrier, correctness, latency, bandwidth by size.

    `sizes` in elements, ascending; those of more than `cap_bytes` are skipped by every rank.
    `warm_ups` and `latency_warm_ups` rounds are not counted. All is over after `deadline_s`.
    `beside` names the models that were in memory on the same nodes when the test was placed.
    """

    mode: Mode
    sizes: tuple[int, ...] = Field(min_length=1)
    latency_warm_ups: int = Field(ge=0)
    latency_rounds: int = Field(ge=1)
    warm_ups: int = Field(ge=0)
    rounds: int = Field(ge=1)
    cap_bytes: int = Field(ge=0)
    deadline_s: float = Field(gt=0)
    beside: tuple[str, ...] = ()


class Timing(Message):
    """Rounds of one exchange, in seconds. `kept` of `rounds` are left when the slowest are
    trimmed; `mean_s` is over those, the others are over all."""

    rounds: int
    kept: int
    mean_s: float
    median_s: float
    least_s: float
    most_s: float


class Check(Message):
    """One exchange with every element looked at: `wrong` of `elements` were not as they have
    to be, the first of them at `first_wrong`."""

    name: str
    elements: int
    wrong: int
    first_wrong: int | None = None


class SizeFinding(Message):
    """One size of `all_sum`: how long, or that it was `skipped` for the memory cap."""

    elements: int
    skipped: bool = False
    timing: Timing | None = None


class RankFinding(Message):
    """What one rank found. `peak_bytes` is the most memory that its arrays took."""

    checks: tuple[Check, ...] = ()
    latency: Timing | None = None
    sizes: tuple[SizeFinding, ...] = ()
    peak_bytes: int = 0


class CollectiveReading(Message):
    """How far a rank of a test is, and what it has found so far. Every second.

    `done` of `rounds` exchanges; in phase `done` the finding is whole.
    """

    kind: Literal["collective_reading"] = "collective_reading"
    node: NodeId
    process: str
    instance: InstanceId
    rank: int
    size: int
    backend: Backend
    test: CollectiveTest
    phase: TestPhase
    done: int
    rounds: int
    finding: RankFinding
    pid: int
    mlx_version: str
    device: str
