"""Talks to the node's API: `shoal verify MODEL` verifies model files on disk."""

from __future__ import annotations

from typing import Any

import typer
from rich.progress import DownloadColumn

from gateway.cli.command import Invocation
from gateway.cli.node.node_state import NodeState
from gateway.cli.output.amounts import size
from gateway.cli.output.errors import FAILED, CliError
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.store.pulling import PaceColumn, pace_of

FETCHED = {
    "pulled": "get the model again with `shoal rm {0}` and `shoal pull {0}`",
    "copied": "delete the copy with `shoal rm {0}`; loading the model here copies it again",
}
"""Remedies for damaged files, by the model's origin."""


def verify_models(invocation: Invocation, models: list[str], node: str | None) -> None:
    """Verify each model and show the result. Raises CliError if a verification cannot run, and Exit
    if a file is damaged."""
    api, output, state = invocation.api(), invocation.output, invocation.state()
    names = [state.find_model(name).model for name in dict.fromkeys(models)]
    results: list[dict[str, Any]] = []
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
        results.append(last)
        _say(output, state, last)
    well = all(result["intact"] for result in results)
    output.document({"well": well, "models": results})
    if not well:
        raise typer.Exit(FAILED)


def _say(output: Output, state: NodeState, result: dict[str, Any]) -> None:
    """Show the result for one model."""
    model, where = result["model"], state.names.get(result["node"], result["node"])
    what = f"{model} on {where}: {result['files']} files, {size(result['total'])}"
    if result["intact"] and result["against"] == "hashes":
        output.say(f"{what}, all hashes match")
    elif result["intact"]:
        output.say(f"{what}, all readable, with intact weight headers")
        output.note("the model has no hashes, so changed bytes cannot be detected")
    if result["unlisted"]:
        output.note(f"files without a hash, all readable: {result['unlisted']}")
    if result["intact"]:
        return
    output.say(f"{what}, {result['wrong_count']} damaged:")
    for file in result["wrong"]:
        output.say(f"  {file['path']}: {file['what']}")
    if result["wrong_count"] > len(result["wrong"]):
        output.say(f"  and {result['wrong_count'] - len(result['wrong'])} more")
    cards = (card for node in state.cards if node.node == result["node"] for card in node.models)
    origin = next((card.origin for card in cards if card.model == model), "put")
    output.note(FETCHED.get(origin, "get the model again from its source").format(model))
