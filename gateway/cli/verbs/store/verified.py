"""Talks to the node's API to have models verified on the disk: `shoal verify MODEL`."""

from __future__ import annotations

from typing import Any

import typer
from rich.progress import DownloadColumn

from gateway.cli.command import Invocation
from gateway.cli.node.node_state import NodeState
from gateway.cli.output.amounts import size
from gateway.cli.output.errors import FAILED, CliError
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.store.pull import PaceColumn, pace_of

FETCHED = {
    "pulled": "get it again with `shoal rm {0}` and `shoal pull {0}`",
    "copied": "delete it with `shoal rm {0}`; loading it here copies it again",
}


def verified(invocation: Invocation, models: list[str], node: str | None) -> None:
    """Have each of the models verified; say what came of it. Raises CliError where one could not
    be, and Exit where a file of one is wrong."""
    api, output, state = invocation.api(), invocation.output, invocation.state()
    names = [state.find_model(name).model for name in dict.fromkeys(models)]
    found: list[dict[str, Any]] = []
    for model in names:
        with (
            api.json_lines("/models/verify", {"model": model, "node": node}) as events,
            output.progress(f"verifying {model}", DownloadColumn(), PaceColumn()) as show,
        ):
            last: dict[str, Any] = {}
            for last in events:
                show(
                    f"{last['status']} {model}",
                    pace=pace_of(last),
                    completed=last["completed"],
                    total=last["total"] or None,
                )
        if last.get("status") != "done":
            text = "the node ended the verification without a reason"
            raise CliError(text, remedy="see `shoal logs worker`")
        found.append(last)
        _say(output, state, last)
    well = all(one["intact"] for one in found)
    output.document({"well": well, "models": found})
    if not well:
        raise typer.Exit(FAILED)


def _say(output: Output, state: NodeState, found: dict[str, Any]) -> None:
    """Say what came of one model."""
    model, where = found["model"], state.names.get(found["node"], found["node"])
    what = f"{model} on {where}: {found['files']} files, {size(found['total'])}"
    if found["intact"] and found["against"] == "hashes":
        output.say(f"{what}, all hashes match")
    elif found["intact"]:
        output.say(f"{what}, all readable, with intact weight headers")
        output.note("it has no hashes, so changed bytes cannot be detected")
    if found["unlisted"]:
        output.note(f"{found['unlisted']} of them have no hash and are readable")
    if found["intact"]:
        return
    output.say(f"{what}, {found['wrong_count']} damaged:")
    for one in found["wrong"]:
        output.say(f"  {one['path']}: {one['what']}")
    if found["wrong_count"] > len(found["wrong"]):
        output.say(f"  and {found['wrong_count'] - len(found['wrong'])} more")
    cards = (one for card in state.cards if card.node == found["node"] for one in card.models)
    origin = next((one.origin for one in cards if one.model == model), "put")
    output.note(FETCHED.get(origin, "get it again from its source").format(model))
