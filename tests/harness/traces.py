"""Holds a trace of a request, as Chrome's trace events, to what such a trace must be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

GATEWAY, LEAD, RANKS = 1, 2, 10
"""The processes of a trace; rank 0 has the first of the last."""
ROUNDED_US = 2
"""Times are told in whole microseconds."""
SLACK = 0.03
"""Parts are the whole within this."""
Events = Sequence[dict[str, Any]]


def check_trace(trace: dict[str, Any], *, sequential: bool = False) -> None:
    """Fail with what is wrong; `sequential`: nothing else was computed beside it, and it took so
    long that what lies between two processes is little of it."""
    events = trace["traceEvents"]
    spans = [one for one in events if one["ph"] == "X"]
    known = {(one["pid"], one["tid"]) for one in events if one["ph"] == "M"}
    assert {(one["pid"], one["tid"]) for one in events} <= known, "each thread has a name"
    lanes: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for one in spans:
        assert isinstance(one["ts"], int) and one["dur"] >= 0, one
        lanes[one["pid"], one["tid"]].append(one)
    for lane in lanes.values():
        _check_nests(lane)
    error_us = trace["otherData"].get("clock", {}).get("error_s", 0.0) * 1e6 + ROUNDED_US
    whole, *stages = lanes[GATEWAY, 0]
    assert whole["ts"] == 0
    _check_tiles(stages, whole["ts"], whole["dur"])
    _check_arrows(events, error_us)
    if (LEAD, 0) in lanes:
        _check_lead(lanes, stages, error_us)
        if sequential:
            _check_sums(lanes, whole, stages)
    for told in trace["otherData"].get("ranks", []):
        lane = lanes.get((RANKS + told["rank"], 0), [])
        assert bool(lane) is told["told"], told
        if lane:
            _check_rank(lane, lanes, told["clock"]["error_s"] * 1e6 + ROUNDED_US)
            if sequential:
                _check_rank_sums(lane, lanes)


def _check_nests(lane: Events) -> None:
    open_until: list[float] = []
    for one in lane:
        end = one["ts"] + one["dur"]
        while open_until and one["ts"] >= open_until[-1] - ROUNDED_US:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + ROUNDED_US, f"{one} overlaps"
        open_until.append(end)


def _check_tiles(spans: Events, begins: int, takes: int) -> None:
    """Spans follow each other without gaps, from the beginning to the end of what they are of."""
    at = begins
    for one in spans:
        assert abs(one["ts"] - at) <= ROUNDED_US, f"a gap before {one}"
        at = one["ts"] + one["dur"]
    assert abs(at - (begins + takes)) <= ROUNDED_US * (1 + len(spans)), "they end before the whole"


def _check_rank(
    lane: Events, lanes: dict[tuple[int, int], list[dict[str, Any]]], error_us: float
) -> None:
    """A rank's turns are its whole, and the parts of those that are told in full are each turn; it
    began when the lead had taken the request up."""
    whole, *inside = lane
    turns = [one for one in inside if "steps" in one["args"]]
    parts = [one for one in inside if "steps" not in one["args"]]
    _check_tiles(turns, whole["ts"], whole["dur"])
    for turn in turns:
        told = sum(turn["args"]["seconds"].values()) * 1e6
        assert abs(told - turn["dur"]) <= ROUNDED_US * 10, f"parts of {turn}"
    if parts:
        _check_tiles(parts, whole["ts"], parts[-1]["ts"] + parts[-1]["dur"] - whole["ts"])
    _, template = lanes[LEAD, 0]
    assert whole["ts"] >= template["ts"] + template["dur"] - error_us, "before it was told to"


def _check_rank_sums(lane: Events, lanes: dict[tuple[int, int], list[dict[str, Any]]]) -> None:
    """A rank was at it as long as the lead was, within `SLACK`; what it made is what was made."""
    whole, *inside = lane
    took_us = sum(one["dur"] for one in lanes[LEAD, 1] if one["name"] in ("prefill", "decode"))
    assert abs(whole["dur"] - took_us) <= SLACK * took_us, (whole["dur"], took_us)
    made = sum(one["args"]["tokens"] for one in inside if one["name"] == "decode")
    told = sum(one["args"]["tokens"] for one in lanes[LEAD, 1] if one["name"] == "decode")
    # a step ahead: what it makes after the last token is thrown away
    assert told <= made <= told + 2, (told, made)


def _check_arrows(events: Events, error_us: float) -> None:
    starts = {one["id"]: one for one in events if one["ph"] == "s"}
    ends = {one["id"]: one for one in events if one["ph"] == "f"}
    assert len([one for one in events if one["ph"] in "sf"]) == len(starts) + len(ends)
    assert set(starts) == set(ends), "each arrow has two ends"
    for number, start in starts.items():
        own_us = start.get("args", {}).get("error_s", 0.0) * 1e6 + ROUNDED_US
        wrong_us = own_us if start["pid"] >= RANKS else error_us
        assert ends[number]["ts"] >= start["ts"] - wrong_us, f"{start} arrives before it is sent"
        assert start["pid"] != ends[number]["pid"], start
        for end in (start, ends[number]) if start["pid"] >= RANKS else ():
            assert _is_inside(end, events), f"{end} hangs in the air"


def _is_inside(event: dict[str, Any], events: Events) -> bool:
    """Whether a span of its lane has the end of an arrow."""
    return any(
        one["ts"] - ROUNDED_US <= event["ts"] <= one["ts"] + one["dur"] + ROUNDED_US
        for one in events
        if one["ph"] == "X" and (one["pid"], one["tid"]) == (event["pid"], event["tid"])
    )


def _check_lead(
    lanes: dict[tuple[int, int], list[dict[str, Any]]], stages: Events, error_us: float
) -> None:
    whole, template = lanes[LEAD, 0]
    sent = max(one["ts"] for one in stages if one["name"] == "route")
    ended = next(one["ts"] for one in stages if one["name"] == "answer")
    assert whole["ts"] >= sent - error_us, "the runner began before it was asked"
    assert whole["ts"] + whole["dur"] <= ended + error_us, "it ended after its end was heard"
    began = template["ts"] + template["dur"]
    for (process, thread), lane in lanes.items():
        if process == LEAD and thread:
            _check_tiles(lane, began, whole["ts"] + whole["dur"] - began)


def _check_sums(
    lanes: dict[tuple[int, int], list[dict[str, Any]]], whole: dict[str, Any], stages: Events
) -> None:
    """The parts that something was done in are the whole, within `SLACK`."""
    sent = max(one["ts"] for one in stages if one["name"] == "route")
    before = sum(one["dur"] for one in stages if one["ts"] < sent)
    after = sum(one["dur"] for one in stages if one["name"] == "answer")
    _, template = lanes[LEAD, 0]
    runner = template["dur"] + sum(one["dur"] for one in lanes[LEAD, 1])
    parts = before + runner + after
    assert abs(parts - whole["dur"]) <= SLACK * whole["dur"], (before, runner, after, whole["dur"])


def check_usage(raw: dict[str, Any]) -> None:
    """Fail where the spans of a request with one choice are not what its runner counted by itself:
    `Usage` is made of other instants, in another place."""
    spans, usage = raw["lead"]["spans"], raw["usage"]
    for name, counted in (("queued", "queue_s"), ("prefill", "prefill_s"), ("decode", "decode_s")):
        took = sum(one["ended_s"] - one["began_s"] for one in spans if one["name"] == name)
        assert abs(took - usage[counted]) <= SLACK * usage[counted] + 0.002, (name, took, usage)
    made = sum(one["tokens"] for one in spans if one["name"] == "decode")
    # the first token comes with the end of the prompt
    assert made == usage["completion_tokens"] - 1
