"""Talks to clients, runners and records, through the stages: the table of stages, in order.

A stage is a function that takes a `Flow` and returns a copy with more facts. It runs only if its
`when` is true for the request; without `when` it always runs. Each part of the table runs at its
own time:

- `request`: once.
- `candidate`: once for each model that is tried. A task may have several.
- `submission`, `answer`, `cut`: once for each model, and again with a shorter conversation if the
  conversation was too long.
- `warm`, `keep`, `record`: when a model has answered. For a stream, `warm` runs before its first
  bytes, `keep` before its last bytes, and `record` at its end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal, get_args

from gateway.exchange.answering import answer, begin
from gateway.exchange.features import (
    admit,
    announce,
    apply_profile,
    choose_trace,
    cut,
    keep,
    let_reattach,
    load_or_unload,
    make_out,
    provide,
    recall_history,
    relay,
    resolve,
    run_in_background,
    stay_warm,
    take_over,
)
from gateway.exchange.flow import Flow
from gateway.exchange.parts import Parts
from gateway.exchange.reading import identify, parse, read, report_ignored, wait_for_models
from gateway.exchange.running import dispatch
from gateway.exchange.spilling import spill

Part = Literal["request", "candidate", "submission", "answer", "cut", "warm", "keep", "record"]


@dataclass(frozen=True, slots=True)
class StageRow:
    """A row of the table. `is_recorded`: a request that fails in this stage is recorded in the
    request log."""

    name: str
    part: Part
    run: Callable[[Parts, Flow], Awaitable[Flow]]
    when: Callable[[Flow], object] | None = None
    is_recorded: bool = True


Table = Mapping[Part, Sequence[StageRow]]


def _may_be_traced(flow: Flow) -> bool:
    return flow.head.may_be_traced or flow.parsed.extras.trace


def _is_empty(flow: Flow) -> bool:
    """Return whether a body only asks to load or unload a model."""
    return flow.parsed.intent != "generate"


def _has_unheeded(flow: Flow) -> bool:
    extras = flow.parsed.extras
    return bool(extras.ignored or extras.for_thinking or (extras.trace and not flow.traced))


def _has_wish(flow: Flow) -> bool:
    """Return whether the body says how long to keep the model loaded."""
    extras = flow.parsed.extras
    return extras.stay_warm_s is not None or extras.keep_alive_s is not None


async def record(_parts: Parts, flow: Flow) -> Flow:
    """Record the exchange and release its resources. There is no exchange if a stream was refused
    after its first bytes."""
    if flow.running is not None:
        flow.running.end(flow.outcome)
    return replace(flow, is_over=True)


STAGES = (
    StageRow("read", "request", read),
    StageRow("resolve", "request", resolve, attrgetter("head.may_name")),
    StageRow("parse", "candidate", parse, lambda flow: flow.order is None),
    StageRow("make_out", "candidate", make_out, attrgetter("order")),
    StageRow("identify", "candidate", identify),
    StageRow("profile", "candidate", apply_profile, attrgetter("profile")),
    StageRow("trace", "candidate", choose_trace, _may_be_traced),
    StageRow("wait_for_models", "candidate", wait_for_models),
    StageRow("report_ignored", "candidate", report_ignored, _has_unheeded),
    StageRow("reattach", "candidate", let_reattach, attrgetter("parsed.extras.reattach_s")),
    StageRow("load", "candidate", load_or_unload, _is_empty, is_recorded=False),
    StageRow("recall", "candidate", recall_history, attrgetter("parsed.to_keep")),
    StageRow("admit", "candidate", admit, attrgetter("is_limited")),
    StageRow("background", "candidate", run_in_background, attrgetter("parsed.background")),
    StageRow("dispatch", "submission", dispatch, lambda flow: flow.provided is None),
    StageRow("provide", "submission", provide, attrgetter("provided")),
    StageRow("announce", "submission", announce, attrgetter("parsed.to_keep")),
    StageRow("relay", "answer", relay, attrgetter("running.relay")),
    StageRow("spill", "answer", spill, attrgetter("spill")),
    StageRow("begin", "answer", begin, attrgetter("trial")),
    StageRow("answer", "answer", answer),
    StageRow("cut", "cut", cut, attrgetter("fault")),
    StageRow("warm", "warm", stay_warm, _has_wish),
    StageRow("keep", "keep", keep, attrgetter("parsed.to_keep")),
    StageRow("record", "record", record),
)  # fmt: skip


def grouped(stages: Sequence[StageRow]) -> Table:
    """Return the stages by part, in their order."""
    return {part: [stage for stage in stages if stage.part == part] for part in get_args(Part)}


TABLE = grouped(STAGES)
_AGAIN = frozenset(
    ("read", "parse", "identify", "profile", "wait_for_models", "recall", "announce", "warm",
     "keep", "record")
)  # fmt: skip
TAKEN_OVER = grouped(
    (
        StageRow("take_over", "submission", take_over),
        *(stage for stage in STAGES if stage.name in _AGAIN),
    )
)
"""The stages for a stream that another HTTP process began and this one continues. Stages that the
other process completed, such as the check of the client's limits, are left out."""
