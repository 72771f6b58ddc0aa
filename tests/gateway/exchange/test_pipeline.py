"""The order of the stages, and that a request is recorded once however it ends."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.models.tasks import ClientProfile, NamedTask, TaskTable
from gateway.exchange import STAGES, Flow, Parts, Pipeline, StageRow, grouped
from tests.harness.exchange_parts import COLD, WARM, Request, Script, ScriptedHttp, ScriptedParts

PLACES = {row.name: place for place, row in enumerate(STAGES)}
PARTS = {row.name: row.part for row in STAGES}
FILES = {
    "profile": "profiles",
    "trace": "tracing",
    "recall": "history",
    "admit": "admission",
    "background": "background",
    "make_out": "candidates",
    "announce": "keeping",
    "cut": "cutting",
    "warm": "residency",
}
"""The file of each feature, by the first of its stages."""
NEVER = 10_000
TURNS = [{"role": "user", "content": f"turn {number}"} for number in range(4)]


@dataclass(frozen=True)
class Fault:
    """What goes wrong: an error in a stage, or a cancellation after so many turns of the loop."""

    stage: str = ""
    at_turn: int = NEVER
    at_piece: int = NEVER


class Broken(RuntimeError):
    """An error that no stage raises on purpose."""


@st.composite
def requests(draw: st.DrawFn) -> Request:
    uses = draw(st.sets(st.sampled_from(
        ["stream", "store", "recall", "background", "trace", "unknown", "warm", "client", "cuts",
         "profile", "resting", "task", "key", "starting", "traced"]
    )))  # fmt: skip
    fields: dict[str, Any] = {"model": "chat" if "task" in uses else WARM, "input": TURNS}
    fields["stream"] = "stream" in uses
    fields["store"] = "store" in uses or "background" in uses
    extras: dict[str, dict[str, Any]] = {
        "background": {"background": True},
        "recall": {"previous_response_id": "resp_r-0"},
        "trace": {"x_trace": True},
        "unknown": {"some_field": 1},
        "warm": {"x_stay_warm": 30},
        "client": {"x_client_id": "ann"},
        "cuts": {"truncation": "auto"},
    }
    for use in uses & set(extras):
        fields |= extras[use]
    script = Script(
        failing=draw(st.integers(0, 3)),
        too_long=draw(st.integers(0, 2)),
        resting="resting" in uses,
        models_known="starting" not in uses,
    )
    names = (COLD, WARM)
    tasks = TaskTable(tasks={"chat": NamedTask(candidates=names)}) if "task" in uses else None
    return Request(
        fields=fields,
        key="k" if "key" in uses else None,
        may_name="task" in uses,
        may_be_traced="traced" in uses,
        script=script,
        profile=ClientProfile(cooldown_s=2.0) if "profile" in uses else None,
        tasks=tasks,
    )


FAULTS = st.one_of(
    st.just(Fault()),
    st.builds(Fault, stage=st.sampled_from([row.name for row in STAGES if row.name != "record"])),
    st.builds(Fault, at_turn=st.integers(0, 60)),
    st.builds(Fault, at_piece=st.integers(0, 6)),
)


def watched(entered: list[str], fault: Fault) -> list[StageRow]:
    """Return the table, whose stages note that they were entered and fail as asked for."""

    def noted(row: StageRow) -> StageRow:
        async def run(parts: Parts, flow: Flow) -> Flow:
            entered.append(row.name)
            if row.name == fault.stage:
                raise Broken
            return await row.run(parts, flow)

        return replace(row, run=run)

    return [noted(row) for row in STAGES]


async def answered(
    request: Request, fault: Fault
) -> tuple[ScriptedParts, ScriptedHttp, list[str], Flow]:
    """Answer a request, read its stream, and return what happened."""
    entered: list[str] = []
    parts, http, flow = request.begun()
    everything: Any = parts
    pipeline = Pipeline(everything, flow, grouped(watched(entered, fault)))

    async def whole() -> None:
        await pipeline.answer()
        if http.pieces is None:
            return
        count = 0
        async for _ in http.pieces:
            count += 1
            if count > fault.at_piece:
                break
        await http.pieces.aclose()

    task = asyncio.ensure_future(whole())
    for _ in range(fault.at_turn):
        if task.done():
            break
        await asyncio.sleep(0)
    if not task.done() and fault.at_turn != NEVER:
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await http.close()
    await parts.close()
    return parts, http, entered, pipeline.flow


@settings(max_examples=150, deadline=None)
@given(request=requests(), fault=FAULTS)
def test_stages_run_in_order_and_each_attempt_is_recorded_once(
    request: Request, fault: Fault
) -> None:
    parts, http, entered, _ = asyncio.run(answered(request, fault))
    attempts = 1
    for before, after in pairwise(entered):
        if PLACES[after] > PLACES[before]:
            continue
        if PARTS[after] == "candidate":
            assert request.tasks is not None, entered
            attempts += 1
        else:
            assert (before, PARTS[after]) == ("cut", "submission"), entered
    has_begun = not entered or entered[0] == "read"
    assert has_begun, entered
    handed_over = len(http.jobs)
    if entered:
        assert len(parts.recorded) + handed_over == attempts, (entered, parts.recorded)
    assert parts.running == 0 and not parts.announced
    assert parts.bodies.held_bytes == 0


@settings(max_examples=30, deadline=None)
@given(request=requests())
def test_a_stage_that_does_not_apply_is_not_entered_and_neither_is_its_file(
    request: Request,
) -> None:
    files: set[str] = set()

    def hook(frame: FrameType, event: str, _argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.parent.name == "features":
            files.add(path.stem)

    profile: Any = sys.getprofile()
    sys.setprofile(hook)
    try:
        _, _, entered, _ = asyncio.run(answered(request, Fault()))
    finally:
        sys.setprofile(profile)
    fields = request.fields
    uses = {
        "profile": request.profile is not None and "x_client_id" not in fields,
        "trace": request.may_be_traced or "x_trace" in fields,
        "make_out": request.tasks is not None,
        "background": "background" in fields,
        "cut": fields.get("truncation") == "auto",
        "warm": "x_stay_warm" in fields,
    }
    for name, is_used in uses.items():
        assert is_used or name not in entered, name
        assert is_used or FILES[name] not in files, FILES[name]


def test_a_plain_chat_enters_no_feature() -> None:
    fields = {"model": WARM, "input": "hello", "store": False}
    _, http, entered, _ = asyncio.run(answered(Request(fields), Fault()))
    assert http.reply.data is not None
    rest = [name for name in entered if name not in ("recall", "announce", "keep")]
    assert rest == [
        "read", "parse", "identify", "wait_for_models", "dispatch", "answer", "record"
    ]  # fmt: skip


def test_each_candidate_has_its_own_ids_and_its_name() -> None:
    tasks = TaskTable(tasks={"chat": NamedTask(candidates=(COLD, WARM))})
    fields = {"model": "chat", "input": "hello", "store": True}
    request = Request(fields, may_name=True, tasks=tasks, script=Script(failing=1))
    parts, http, entered, flow = asyncio.run(answered(request, Fault()))
    assert entered.count("make_out") == 2 and entered.count("read") == 1
    assert [record[:2] for record in parts.recorded] == [
        ("answer", "runner_lost"),
        ("answer", "finished"),
    ]
    assert flow.parsed.model == WARM and flow.parsed.answer_id == "resp_r-2"
    assert b"r-1" not in parts.stored[0] and b"r-2" in parts.stored[0]
    assert http.reply.headers["x-shoal-answered-by"] == WARM


def test_a_stream_is_recorded_as_it_ended() -> None:
    fields = {"model": WARM, "input": "hello", "store": False, "stream": True}
    parts, *_ = asyncio.run(answered(Request(fields), Fault()))
    assert parts.recorded == [("answer", "finished", 200)]
    parts, *_ = asyncio.run(answered(Request(fields), Fault(at_piece=1)))
    assert parts.recorded == [("answer", "client_closed", 200)]
