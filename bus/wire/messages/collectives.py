"""Messages of the collective test: the order to start it, and the results of each rank.

Pure. The order is a `CollectiveTest` in an instance without a model. Results are readings, which
are retained for a while after their runner has ended. Sizes count elements of four bytes.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.messages.wire import Message

TEST_MODEL = ModelId("collective-test")
"""The model name of an instance that runs a collective test."""

Mode = Literal["quick", "standard", "stress"]
Backend = Literal["ring", "jaccl"]
TestPhase = Literal["forming", "correctness", "latency", "bandwidth", "done"]


class CollectiveTest(Message):
    """The order to all ranks: pass a barrier, then test correctness, latency, and the bandwidth of
    each size.

    `sizes` in elements, ascending; every rank skips a size above `cap_bytes`. `warm_ups` and
    `latency_warm_ups` rounds are not counted. The test ends after `deadline_s`. `beside`: the
    models that were in memory on these nodes when the test was placed.
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
    """The durations of the rounds of one exchange, in seconds. `mean_s` is the mean without the
    slowest rounds: of `rounds` rounds, `kept` count. The other figures cover all rounds."""

    rounds: int
    kept: int
    mean_s: float
    median_s: float
    least_s: float
    most_s: float


class Check(Message):
    """The check of one exchange. `wrong` of all `elements` had a wrong value; the first of these is
    number `first_wrong`."""

    name: str
    elements: int
    wrong: int
    first_wrong: int | None = None


class SizeFinding(Message):
    """One size of `all_sum`: its timing, or that it was `skipped` because of the memory limit."""

    elements: int
    skipped: bool = False
    timing: Timing | None = None


class RankFinding(Message):
    """The results of one rank. `peak_bytes`: the peak memory of its arrays."""

    checks: tuple[Check, ...] = ()
    latency: Timing | None = None
    sizes: tuple[SizeFinding, ...] = ()
    peak_bytes: int = 0


class CollectiveReading(Message):
    """The progress of a rank's test and its results so far. Sent every second.

    `done` of `rounds` exchanges have ended; in phase `done` the results are complete.
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
