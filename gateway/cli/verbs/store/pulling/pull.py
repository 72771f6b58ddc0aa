"""Talks to the node's API: `shoal pull` has a node download a model from a hub, and shows the
progress.

The pull runs in the background of the node. It continues if the terminal is closed or the user
presses Ctrl-C.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Annotated, Any, cast

import typer
from rich.progress import DownloadColumn, ProgressColumn, Task
from rich.text import Text

from gateway.cli.command import Invocation
from gateway.cli.output.amounts import size, span
from gateway.cli.output.errors import USAGE, CliError
from gateway.cli.output.printable import printable_line
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.store.pulling.plan import show_plan
from gateway.cli.verbs.store.pulling.split import pull_split

EVERYWHERE = "all"
REMARK_S = 10.0
"""Seconds between two lines of progress where no progress bar can be drawn."""
PLAN_S = 75.0
"""The node needs up to a minute for a plan, because the hub may ask it to wait."""


def pull(
    invocation: Invocation,
    model: Annotated[
        str,
        typer.Argument(
            help="A hub repository, a GGUF quantisation of one, or a common name such as qwen3:4b.",
            metavar="OWNER/NAME[:QUANTISATION][@REVISION]",
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="NODE|all", help="The node that stores the model; default: this node."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only show the files and the nodes where the model fits."),
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Pull the model even if it fits into no node's memory."),
    ] = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Return once the node has begun the pull; see `shoal pulls`."
        ),
    ] = False,
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            metavar="NODE,NODE[,...]",
            help="Each node downloads only its own layers; `a=12,b=16` sets how many.",
        ),
    ] = None,
) -> None:
    """Download a model from the Hugging Face hub, or copy it from another node. The node continues
    in the background if you press Ctrl-C or close the terminal; `shoal pulls cancel` ends it."""
    output = invocation.output
    if split is not None:
        if to is not None or anyway or (dry_run and detach):
            text = "--split cannot be combined with --to or --anyway, nor --dry-run with --detach"
            raise CliError(text, code=USAGE)
        nodes = [entry.strip() for entry in split.split(",")]
        pull_split(invocation, model, nodes, dry_run=dry_run, detach=detach)
        return
    if dry_run:
        if to == EVERYWHERE:
            remedy = "use `--to NODE`, or omit it for this node"
            raise CliError("--dry-run works for one node only", remedy=remedy, code=USAGE)
        if detach:
            raise CliError("--dry-run pulls nothing", remedy="omit --detach", code=USAGE)
        show_plan(output, plan_of(invocation, model, to))
        return
    if to == EVERYWHERE:
        output.document(_to_all(invocation, model, anyway=anyway, detach=detach))
        return
    last = pull_to(invocation, model, to, anyway=anyway, detach=detach)
    output.document(last)
    if last["status"] == "done" and not last["note"]:
        output.note(f'try it: `shoal run {last["model"]} "..."`')


def plan_of(invocation: Invocation, model: str, to: str | None = None) -> dict[str, Any]:
    """Return the plan of a pull: its size, and the nodes where the model fits. Raises CliError."""
    body = {"model": model, "to": to, "dry_run": True}
    plan = invocation.api().post("/models/pull", body, timeout_s=PLAN_S)
    return cast(dict[str, Any], plan)


def _to_all(
    invocation: Invocation, model: str, *, anyway: bool, detach: bool
) -> list[dict[str, Any]]:
    """Pull a model to this node, then have every other node copy it. Return the last event of each
    node. If a node fails, the other nodes continue; raises CliError at the end."""
    state = invocation.state()
    others = sorted((card.name, card.node) for card in state.cards if card.node != state.node)
    ended = [pull_to(invocation, model, None, anyway=anyway, detach=detach)]
    failed: list[str] = []
    for name, node in others:
        invocation.output.note(f"to {name}")
        try:
            ended.append(pull_to(invocation, model, node, anyway=anyway, detach=detach))
        except CliError as error:
            failed.append(f"{name}: {error}")
    if failed:
        raise CliError(f"{len(failed)} of {len(others) + 1} nodes failed: {'; '.join(failed)}")
    return ended


def pull_to(
    invocation: Invocation,
    model: str,
    to: str | None = None,
    *,
    anyway: bool = False,
    detach: bool = False,
) -> dict[str, Any]:
    """Have one node pull a model in the background, and show the progress. If `to` is None, that is
    the node that answers. Return the last event; with `detach`, the first one after the node has
    begun. Raises CliError."""
    api, output, names = invocation.api(), invocation.output, invocation.state().names
    body = {"model": model, "to": to, "anyway": anyway, "background": True}
    last: dict[str, Any] = {}
    try:
        with (
            api.json_lines("/models/pull", body) as events,
            output.progress(f"pulling {model}", DownloadColumn(), PaceColumn()) as show,
        ):
            remarks = _Remarks(output, names)
            for event in events:
                if not last and event["known_as"]:
                    output.note(f"{event['known_as']} stands for {event['model']}")
                if event["background"] and not last.get("background") and not detach:
                    output.note(_HINT.format(event["model"]))
                if event["choice"] and not last.get("choice"):
                    output.note(f"pulling {event['choice']}")
                last = event
                if event["unreckoned"]:
                    output.note(f"pulled without a memory estimate: {event['unreckoned']}")
                if detach and event["background"]:
                    break
                remarks.say(event)
                show(
                    _words(event, names),
                    description=f"{event['model'].rpartition('/')[2]} {event['status']}",
                    pace=pace_of(event),
                    completed=event["completed"],
                    total=event["total"] or None,
                )
    except KeyboardInterrupt:
        output.note(_interrupted(last))
        raise
    if detach and last.get("background"):
        output.say(f"{names.get(last['node'], last['node'])} pulls {last['model']}")
        output.note("see `shoal pulls`")
        return last
    return _ended(output, last)


_HINT = "Ctrl-C does not end this pull; `shoal pulls cancel {}` does"


def _interrupted(last: Mapping[str, Any]) -> str:
    """Return a text that says whether the pull continues when the user interrupts the command after
    this event."""
    if not last:
        return "interrupted; `shoal pulls` shows whether the node pulls"
    if last["background"]:
        cancel = f"`shoal pulls cancel {last['model']}`"
        return f"the pull continues in the background: see `shoal pulls`, end it with {cancel}"
    return "stopped before the download began; the same `shoal pull` starts it"


def _ended(output: Output, last: dict[str, Any]) -> dict[str, Any]:
    """Show and return the last event of a pull. Raises CliError if the pull is not done."""
    if last.get("status") != "done":
        raise CliError("the node ended the pull without a reason", remedy="see `shoal logs worker`")
    if last["note"]:
        output.say(f"{last['model']}: {last['note']}")
        return last
    came = (
        "copied from other nodes"
        if last["sources"]
        else f"{size(last['received_bytes'])} downloaded"
    )
    output.say(f"pulled {last['model']} ({size(last['total'])}, {came})")
    return last


_COUNTED = re.compile(r"waits \d+ s: ")
"""The remaining time in a note. It is removed before notes are compared, because it changes each
second."""


class PaceColumn(ProgressColumn):
    """Speed and remaining time, as the node reports them."""

    def render(self, task: Task) -> Text:
        return Text(printable_line(task.fields.get("pace", "")), style="dim")


class _Remarks:
    """The progress of a pull where no bar can be drawn: one line for each phase, and further lines
    from time to time."""

    def __init__(self, output: Output, names: Mapping[str, str]) -> None:
        self._output = output
        self._names = names
        self._phase: tuple[Any, Any] = ("", "")
        self._said_at = 0.0

    def say(self, event: dict[str, Any]) -> None:
        """Write the progress if the phase changed or `REMARK_S` passed."""
        phase = event["status"], _COUNTED.sub("", event["note"])
        now = time.monotonic()
        is_due = event["completed"] and now - self._said_at >= REMARK_S
        if self._output.live or event["status"] == "done" or not (phase != self._phase or is_due):
            return
        self._phase, self._said_at = phase, now
        self._output.note(_words(event, self._names))


def pace_of(event: dict[str, Any]) -> str:
    """Return the speed and the remaining time. If the node sent a note, return the note instead."""
    pace = [f"{size(event['bytes_per_s'])}/s"] if event["bytes_per_s"] else []
    pace += [f"{span(event['eta_s'])} left"] if event["eta_s"] is not None else []
    return event.get("note") or ", ".join(pace)


def _words(event: dict[str, Any], names: Mapping[str, str]) -> str:
    """Return the progress of a pull in one line; `names` maps node id to node name."""
    status, total = event["status"], event["total"]
    words = [f"{status} {event['model']}"]
    if total and status in ("waiting", "fetching", "copying"):
        words.append(f"{100 * event['completed'] // total} % of {size(total)}")
    if event["sources"]:
        words.append(f"from {', '.join(names.get(source, source) for source in event['sources'])}")
    pace = pace_of(event)
    return ", ".join(words) + (f": {pace}" if pace else "")
