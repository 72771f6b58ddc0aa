"""A kept trace as Chrome's trace events (JSON), which Perfetto (ui.perfetto.dev) opens.

Pure. A process for the gateway and one for the lead runner, a thread for each choice; times in
microseconds from the request's first byte on, all on the gateway's clock. Two arrows join the
sides: from the stage in which the request went out to the runner, and from its end back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GATEWAY, LEAD = 1, 2
OUT, BACK = 1, 2
_WHOLE = 0
Told = Mapping[str, Any]


def chrome_trace(told: Told) -> dict[str, Any]:
    """Return a trace as one object of trace events. What is said of it as a whole, the error of the
    clocks among it, stands in `otherData`."""
    sides = ("gateway", "lead", "sums")
    facts = {name: value for name, value in told.items() if name not in sides}
    events = _gateway_events(told)
    lead = told["lead"]
    if lead is not None:
        facts["clock"] = lead["clock"]
        events += [*_lead_events(told, lead), *_arrows(told, lead)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


def _gateway_events(told: Told) -> list[dict[str, Any]]:
    named = _named(GATEWAY, f"gateway of node {told['node']}", {_WHOLE: "request"})
    whole = {"name": "request", "began_s": 0.0, "ended_s": told["seconds"]}
    stages = [_span(GATEWAY, _WHOLE, one) for one in (whole, *told["gateway"])]
    return [*named, *stages]


def _lead_events(told: Told, lead: Told) -> list[dict[str, Any]]:
    threads = {choice + 1: f"choice {choice}" for choice in range(lead["choices"])}
    of = f"runner {lead['instance']} on node {lead['node']}"
    named = _named(LEAD, of, {_WHOLE: "request", **threads})
    whole = {
        "name": "request",
        "began_s": lead["received_s"],
        "ended_s": lead["told_s"],
        "model": told["model"],
    }
    spans = [
        _span(LEAD, _WHOLE if one["name"] == "template" else one["choice"] + 1, one)
        for one in lead["spans"]
    ]
    return [*named, _span(LEAD, _WHOLE, whole), *spans]


def _arrows(told: Told, lead: Told) -> list[dict[str, Any]]:
    stages = told["gateway"]
    sent = max((one["began_s"] for one in stages if one["name"] == "route"), default=0.0)
    ended = max((one["began_s"] for one in stages if one["name"] == "answer"), default=0.0)
    return [
        *_arrow(OUT, "submit", (GATEWAY, sent), (LEAD, lead["received_s"])),
        *_arrow(BACK, "end", (LEAD, lead["told_s"]), (GATEWAY, ended)),
    ]


def _arrow(
    number: int, name: str, start: tuple[int, float], end: tuple[int, float]
) -> list[dict[str, Any]]:
    both = {"name": name, "cat": "link", "id": number, "tid": _WHOLE}
    return [
        {**both, "ph": "s", "pid": start[0], "ts": _us(start[1])},
        {**both, "ph": "f", "bp": "e", "pid": end[0], "ts": _us(end[1])},
    ]


def _named(process: int, name: str, threads: Mapping[int, str]) -> list[dict[str, Any]]:
    about = [("process_name", _WHOLE, name)]
    about += [("thread_name", thread, of) for thread, of in threads.items()]
    return [
        {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": text}}
        for kind, thread, text in about
    ]


def _span(process: int, thread: int, one: Told) -> dict[str, Any]:
    began_us, ended_us = _us(one["began_s"]), _us(one["ended_s"])
    rest = {key: one[key] for key in one if key not in ("name", "choice", "began_s", "ended_s")}
    return {
        "ph": "X",
        "name": one["name"],
        "cat": "gateway" if process == GATEWAY else "runner",
        "pid": process,
        "tid": thread,
        "ts": began_us,
        "dur": ended_us - began_us,
        "args": rest,
    }


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
