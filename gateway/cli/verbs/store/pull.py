"""Talks to the node's API: `shoal pull` downloads a model from a hub, `shoal quantize` makes a
smaller model."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Annotated, Any, cast

import typer
from rich.progress import DownloadColumn, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from gateway.cli.command import Invocation
from gateway.cli.node.node_api import NodeApi
from gateway.cli.output.amounts import size, span
from gateway.cli.output.errors import FAILED, NOT_FOUND, CliError
from gateway.cli.output.printable import printable_line
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.models.instances import ModelName
from gateway.cli.verbs.store.pull_plan import show_plan

EVERYWHERE = "all"
REMARK_S = 10.0
"""Seconds between two lines of progress where no progress bar can be drawn."""
LOOK_S = 0.25
LEARN_S = 5.0
"""How long the HTTP process that answers may take to learn that a quantization began or ended."""
LISTED_S = 20.0


def pull(
    invocation: Invocation,
    model: Annotated[
        str,
        typer.Argument(
            help="A hub repository, or a common name such as qwen3:4b.",
            metavar="OWNER/NAME[@REVISION]",
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
        typer.Option("--dry-run", help="Only show the files and the nodes where it fits."),
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Pull the model even if it fits into no node's memory."),
    ] = False,
) -> None:
    """Download a model from the Hugging Face hub, or copy it from another node. Ctrl-C stops the
    download; the same command resumes it."""
    output = invocation.output
    if dry_run:
        if to == EVERYWHERE:
            remedy = "use `--to NODE`, or omit it for this node"
            raise CliError("--dry-run works for one node only", remedy=remedy, code=2)
        body = {"model": model, "to": to, "dry_run": True}
        show_plan(output, cast(dict[str, Any], invocation.api().post("/models/pull", body)))
        return
    if to == EVERYWHERE:
        output.document(_to_all(invocation, model, anyway=anyway))
        return
    last = _to_one(invocation, model, to, anyway=anyway)
    output.document(last)
    if not last["note"]:
        output.note(f'try it: `shoal run {last["model"]} "..."`')


def _to_all(invocation: Invocation, model: str, *, anyway: bool) -> list[dict[str, Any]]:
    """Pull a model to this node, then have every other node copy it. Return the last event of each
    node. If a node fails, the other nodes continue; raises CliError at the end."""
    state = invocation.state()
    others = sorted((card.name, card.node) for card in state.cards if card.node != state.node)
    ended = [_to_one(invocation, model, None, anyway=anyway)]
    failed: list[str] = []
    for name, node in others:
        invocation.output.note(f"to {name}")
        try:
            ended.append(_to_one(invocation, model, node, anyway=anyway))
        except CliError as error:
            failed.append(f"{name}: {error}")
    if failed:
        raise CliError(f"{len(failed)} of {len(others) + 1} nodes failed: {'; '.join(failed)}")
    return ended


def _to_one(invocation: Invocation, model: str, to: str | None, *, anyway: bool) -> dict[str, Any]:
    """Pull a model to one node and show the progress. If `to` is None, pull to the node that
    answers. Return the last event. Raises CliError."""
    api, output, names = invocation.api(), invocation.output, invocation.state().names
    last: dict[str, Any] = {}
    try:
        with (
            api.json_lines("/models/pull", {"model": model, "to": to, "anyway": anyway}) as events,
            output.progress(f"pulling {model}", DownloadColumn(), PaceColumn()) as show,
        ):
            remarks = _Remarks(output, names)
            for event in events:
                if not last and event["known_as"]:
                    output.note(f"{event['known_as']} stands for {event['model']}")
                last = event
                if event["unreckoned"]:
                    output.note(f"pulled without a memory estimate: {event['unreckoned']}")
                remarks.say(event)
                show(
                    _words(event, names),
                    description=f"{event['model'].rpartition('/')[2]} {event['status']}",
                    pace=pace_of(event),
                    completed=event["completed"],
                    total=event["total"] or None,
                )
    except KeyboardInterrupt:
        output.note("stopped; the downloaded part is kept, and the same `shoal pull` resumes")
        raise
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


def quantize(
    invocation: Invocation,
    model: ModelName,
    bits: Annotated[int, typer.Option("--bits", help="Bits per weight: 4, 6 or 8.")] = 4,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the new model; default: MODEL-4bit.")
    ] = None,
    group_size: Annotated[
        int, typer.Option("--group-size", help="Weights per scale: 32, 64 or 128.")
    ] = 64,
    on: Annotated[
        str | None, typer.Option("--on", metavar="NODE", help="The node that quantizes.")
    ] = None,
) -> None:
    """Quantize a model to fewer bits, on a node that has it. Ctrl-C cancels and deletes partial
    files."""
    api, output = invocation.api(), invocation.output
    body = {"model": model, "bits": bits, "name": name, "group_size": group_size, "node": on}
    begun = cast(dict[str, Any], api.post("/models/quantize", body))
    made = str(begun["model"])
    _follow(api, str(begun["instance"]), made, output)
    card = _wait_listed(api, made)
    output.document(card)
    before, after = begun["source_bytes"], card["size_bytes"]
    output.say(f"made {made} from {begun['source']} ({size(before)} to {size(after)})")
    output.note(f'try it: `shoal run {made} "..."`')


def _follow(api: NodeApi, instance: str, made: str, output: Output) -> None:
    """Wait until the quantized model is made. An interrupt cancels the work. Raises CliError if it
    fails."""
    known_by_at = time.monotonic() + LEARN_S
    try:
        with output.progress(f"making {made}", DownloadColumn(), TimeRemainingColumn()) as show:
            while True:
                try:
                    answer = cast(dict[str, Any], api.get(f"/instance/{instance}"))
                except CliError as problem:
                    if problem.code != NOT_FOUND:
                        raise
                    if time.monotonic() > known_by_at:
                        return
                    time.sleep(LOOK_S)
                    continue
                known_by_at = 0.0
                row = answer["instance"]
                reading = cast(dict[str, Any], answer["reading"] or {})
                if row["status"] == "failed":
                    raise CliError(
                        f"cannot make {made}: {row['why']}", remedy="see `shoal logs`", code=FAILED
                    )
                done, total = reading.get("done_bytes", 0), reading.get("total_bytes", 0)
                words = f"making {made}" + (f": {100 * done // total} %" if total else "")
                show(words, description="making", completed=done, total=total or None)
                time.sleep(LOOK_S)
    except KeyboardInterrupt:
        output.note("cancelled; its files were deleted")
        api.delete(f"/instance/{instance}")
        raise


def _wait_listed(api: NodeApi, made: str) -> dict[str, Any]:
    """Wait until a node lists the new model, then return its model card. Raises CliError."""
    gives_up_at = time.monotonic() + LISTED_S
    while time.monotonic() < gives_up_at:
        card = next((card for name, card in api.state().models.items() if name == made), None)
        if card is not None:
            return card.model_dump(mode="json")
        time.sleep(LOOK_S)
    text = f"making {made} was cancelled, or no node lists it yet"
    raise CliError(text, remedy="see `shoal ls` and `shoal logs worker`", code=FAILED)
