"""Converts a stored trace to Chrome trace events (JSON), which Perfetto (ui.perfetto.dev) opens.

Pure. Perfetto shows the gateway as one process, the runner of rank 0 as another with a thread per
choice, and each further rank as another. Times are in microseconds from the request's first byte,
on the gateway's clock. One arrow goes from the gateway's stage that sent the request to the runner.
One arrow goes from the runner's end back to the gateway. Each transfer between ranks is an arrow,
too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.tracing.rounding import DIGITS

GATEWAY, LEAD = 1, 2
RANKS = 10
"""The process number of rank 0; the numbers of the other ranks follow."""
OUT, BACK = 1, 2
LINKS = 10
"""The id of the first arrow between ranks."""
_WHOLE = 0
JsonObject = Mapping[str, Any]


def chrome_trace(trace: JsonObject) -> dict[str, Any]:
    """Return a trace as one object of trace events. Facts about the whole trace, such as the clock
    error, are in `otherData`."""
    sides = ("gateway", "lead", "ranks", "links", "sums")
    facts = {name: value for name, value in trace.items() if name not in sides}
    events = _gateway_events(trace)
    lead = trace["lead"]
    if lead is not None:
        facts["clock"] = lead["clock"]
        events += [*_lead_events(trace, lead), *_arrows(trace, lead)]
    if ranks := trace.get("ranks"):  # absent in a trace of an earlier build
        about = ("rank", "node", "told", "why", "clock", "totals")
        facts["ranks"] = [{name: rank[name] for name in about if name in rank} for rank in ranks]
        for rank in ranks:
            events += _rank_events(rank)
        for number, link in enumerate(trace["links"]):
            events += _link_arrow(LINKS + number, link)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


def _gateway_events(trace: JsonObject) -> list[dict[str, Any]]:
    named = _named(GATEWAY, f"gateway of node {trace['node']}", {_WHOLE: "request"})
    whole = {"name": "request", "began_s": 0.0, "ended_s": trace["seconds"]}
    stages = [_span(GATEWAY, _WHOLE, stage) for stage in (whole, *trace["gateway"])]
    return [*named, *stages]


def _lead_events(trace: JsonObject, lead: JsonObject) -> list[dict[str, Any]]:
    threads = {choice + 1: f"choice {choice}" for choice in range(lead["choices"])}
    of = f"runner {lead['instance']} on node {lead['node']}"
    named = _named(LEAD, of, {_WHOLE: "request", **threads})
    whole = {
        "name": "request",
        "began_s": lead["received_s"],
        "ended_s": lead["told_s"],
        "model": trace["model"],
    }
    spans = [
        _span(LEAD, _WHOLE if span["name"] == "template" else span["choice"] + 1, span)
        for span in lead["spans"]
    ]
    return [*named, _span(LEAD, _WHOLE, whole), *spans]


def _rank_events(rank: JsonObject) -> list[dict[str, Any]]:
    """Return the events of a rank, which Perfetto nests: its whole time, its turns, and the parts
    of each turn. A rank without timings has only its name and the reason."""
    process, of = RANKS + rank["rank"], f"rank {rank['rank']} on node {rank['node']}"
    if not rank["told"]:
        return _named(process, f"{of}: {rank['why']}", {})
    whole = {"name": "request", "began_s": rank["began_s"], "ended_s": rank["ended_s"]}
    inside = sorted(
        [*((turn, 0) for turn in rank["turns"]), *((part, 1) for part in rank["parts"])],
        key=lambda span: (_us(span[0]["began_s"]), span[1]),
    )
    spans = [_span(process, _WHOLE, span) for span in (whole, *(span for span, _ in inside))]
    return [*_named(process, of, {_WHOLE: "engine"}), *spans]


def _link_arrow(number: int, link: JsonObject) -> list[dict[str, Any]]:
    ends = (RANKS + link["from"], link["sent_s"]), (RANKS + link["to"], link["had_s"])
    about = {name: link[name] for name in ("step", "bytes", "error_s")}
    about["seconds"] = round(link["had_s"] - link["sent_s"], DIGITS)
    return [{**event, "args": about} for event in _arrow(number, link["what"], *ends)]


def _arrows(trace: JsonObject, lead: JsonObject) -> list[dict[str, Any]]:
    stages = trace["gateway"]
    sent = max((stage["began_s"] for stage in stages if stage["name"] == "route"), default=0.0)
    ended = max((stage["began_s"] for stage in stages if stage["name"] == "answer"), default=0.0)
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


def _span(process: int, thread: int, span: JsonObject) -> dict[str, Any]:
    began_us, ended_us = _us(span["began_s"]), _us(span["ended_s"])
    rest = {key: span[key] for key in span if key not in ("name", "choice", "began_s", "ended_s")}
    return {
        "ph": "X",
        "name": span["name"],
        "cat": {GATEWAY: "gateway", LEAD: "runner"}.get(process, "rank"),
        "pid": process,
        "tid": thread,
        "ts": began_us,
        "dur": ended_us - began_us,
        "args": rest,
    }


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
