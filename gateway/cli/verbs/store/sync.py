"""Talks to the node's API: `shoal sync` copies models between nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.progress import DownloadColumn

from gateway.cli.command import Invocation
from gateway.cli.output.amounts import size, span
from gateway.cli.output.errors import CliError
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.store.pulling import REMARK_S, PaceColumn

ENDED = ("done", "failed")
MOST_NAMED = 5


def sync(
    invocation: Invocation,
    to: Annotated[str, typer.Option("--to", metavar="NODE|all", help="The node to copy to.")],
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL...]", help="Models of any node; default: all of this node."),
    ] = None,
) -> None:
    """Copy models to another node, or to all nodes. Models that a node already has are skipped.
    Ctrl-C stops the copy; the same command resumes it."""
    api, output, names = invocation.api(), invocation.output, invocation.state().names
    last: dict[str, Any] = {}
    copies = _Copies(output, names)
    try:
        with (
            api.json_lines("/models/sync", {"models": models or [], "to": to}) as events,
            output.progress("copying", DownloadColumn(), PaceColumn()) as show,
        ):
            for last in events:
                if last["status"] == "planned":
                    copies.plan(last)
                elif "model" in last:
                    copies.hear(last)
                    done, total, pace = copies.sums()
                    words = f"copying {size(done)} of {size(total)}" + (f", {pace}" if pace else "")
                    show(words, description="copying", pace=pace, completed=done, total=total)
    except KeyboardInterrupt:
        output.note("stopped; the copied part is kept, and the same `shoal sync` resumes")
        raise
    if last.get("status") != "done":
        raise CliError("the node ended the copy without a reason", remedy="see `shoal logs`")
    output.document(last)
    for node in dict.fromkeys(copy["node"] for copy in last["there"]):
        there = [copy["model"] for copy in last["there"] if copy["node"] == node]
        output.say(f"{_listed(there)} {_is(there)} already on {names.get(node, node)}")


def _listed(words: Sequence[str]) -> str:
    """Return the first `MOST_NAMED` words and the number of further words, as text for people."""
    more = len(words) - MOST_NAMED
    return ", ".join(words[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _is(words: Sequence[str]) -> str:
    return "is" if len(words) == 1 else "are"


@dataclass(slots=True)
class _Copies:
    """The progress of each copy, and the total progress."""

    output: Output
    names: dict[str, str]
    total: int = 0
    states: dict[tuple[str, str], dict[str, Any]] = field(
        default_factory=dict[tuple[str, str], dict[str, Any]]
    )
    said_at: float = 0.0

    def plan(self, planned: dict[str, Any]) -> None:
        """Store the planned copies and their total size."""
        self.total = planned["total"]
        if copies := planned["copies"]:
            noun = "copy" if len(copies) == 1 else "copies"
            self.output.note(f"{len(copies)} {noun} to make, {size(self.total)}")

    def hear(self, event: dict[str, Any]) -> None:
        """Store the progress of a copy and report its end. Without a progress bar, also report its
        progress."""
        before = self.states.get((event["model"], event["node"]), {})
        self.states[event["model"], event["node"]] = event
        what = f"{event['model']} to {self._named(event['node'])}"
        begins = event["status"] == "copying" != before.get("status")
        if event["status"] == "done":
            sources = " and ".join(map(self._named, event["sources"]))
            since = f"from {sources}" if sources else "already there"
            self.output.say(f"copied {what} ({size(event['total'])}, {since})")
        elif event["status"] == "failed":
            self.output.note(f"cannot copy {what}: {event['message']}")
        elif not self.output.live and (begins or time.monotonic() - self.said_at >= REMARK_S):
            self.said_at = time.monotonic()
            share = 100 * event["completed"] // max(1, event["total"])
            words = f"{event['status']} {what}, {share} % of {size(event['total'])}"
            left = event["eta_s"]
            pace = f", {size(event['bytes_per_s'])}/s" if event["bytes_per_s"] else ""
            self.output.note(words + pace + (f", {span(left)} left" if left is not None else ""))

    def sums(self) -> tuple[int, int, str]:
        """Return the copied bytes, the bytes of all copies, and the speed with the remaining
        time."""
        done = sum(state["completed"] for state in self.states.values())
        going = [state for state in self.states.values() if state["status"] not in ENDED]
        rate = sum(state["bytes_per_s"] for state in going)
        if not rate:
            return done, self.total, ""
        left_s = max(0, self.total - done) / rate
        return done, self.total, f"{size(rate)}/s, {span(left_s)} left"

    def _named(self, node: str) -> str:
        return self.names.get(node, node)
