"""Talks to the node's API about placements: `shoal place`."""

from __future__ import annotations

from typing import Annotated, Any, cast
from urllib.parse import urlencode

import typer

from bus.wire.accelerators import DeviceShare
from bus.wire.instances import Instance
from gateway.cli.command import Invocation
from gateway.cli.node.node_api import without_none
from gateway.cli.output.amounts import size
from gateway.cli.output.errors import CliError
from gateway.cli.output.sensors import shares_text
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.models.instances import (
    AcknowledgedPlacement,
    Another,
    Context,
    Kv,
    ModelName,
    Wait,
    kv_kind,
    wait_ready,
)

WIDTH = 96
"""Maximum width of a reason in the table, in characters. `--json` shows the whole reason."""


def place(
    invocation: Invocation,
    model: ModelName,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the possible placements and the best one.")
    ] = False,
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, help="Minimum number of nodes, one rank each.")
    ] = 1,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", help="A node to exclude.")
    ] = None,
    sharding: Annotated[
        str | None,
        typer.Option("--sharding", help="`pipeline` or `tensor`; default: the faster one."),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option("--layers", help="Layers per node, first layers first: `box1=12,box2=20`."),
    ] = None,
    context: Context = None,
    kv: Kv = None,
    another: Another = False,
    wait_s: Wait = 300.0,
) -> None:
    """Place a model on one or several nodes, and wait until it is ready."""
    if sharding not in (None, "pipeline", "tensor"):
        raise CliError(f"--sharding {sharding!r}", remedy="use `pipeline` or `tensor`", code=2)
    wish: dict[str, Any] = {"model": model, "min_nodes": nodes, "excluded_nodes": exclude or []}
    wish |= without_none({"sharding": sharding, "context_tokens": context, "kv": kv_kind(kv)})
    by_hand = parse_layers(layers) if layers is not None else {}
    if dry_run and not by_hand:
        _preview(invocation, wish)
        return
    body = {**wish, "layers": by_hand, "dry_run": dry_run, "if_absent": not another}
    api, output = invocation.api(), invocation.output
    answer = api.post("/place_instance", body)
    if dry_run:
        output.document(answer)
        _show_plan(output, cast(dict[str, Any], answer.get("plan") or {}))
        return
    instance = wait_ready(api, AcknowledgedPlacement.of(answer), output, wait_s)
    output.document({**instance.model_dump(mode="json"), "status": "ready"})
    output.say(f"{instance.model} is ready ({instance.instance})")
    output.table(("rank", "node", "layers", ">memory"), _rank_rows(instance, api.state().names))
    for shard in instance.shards:
        if shard.devices:
            output.note(f"rank {shard.rank}: {shares_text(shard.devices)}")


def parse_layers(text: str) -> dict[str, int]:
    """Parse `box1=12,box2=20` and keep the order. Raises CliError if the text has another form."""
    layers: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.strip().partition("=")
        if not name or not count.isdecimal() or name in layers:
            remedy = "list each node once with its layers: `--layers box1=12,box2=20`"
            raise CliError(
                f"--layers: {part.strip()!r} is not of the form NODE=COUNT", remedy=remedy, code=2
            )
        layers[name] = int(count)
    return layers


def _preview(invocation: Invocation, wish: dict[str, Any]) -> None:
    output = invocation.output
    query = urlencode(wish, doseq=True)
    answer = invocation.api().get(f"/instance/previews?{query}")
    output.document(answer)
    rows = [_row(preview) for preview in answer["previews"]]
    columns = (
        "",
        ">nodes",
        "sharding",
        ">tokens/s",
        ">to download",
        "layers and memory, or why not",
    )
    output.table(columns, rows)
    for name, why in answer["blocked"].items():
        output.note(f"{name}: {why}")
    if answer["refusal"] is not None:
        output.say(f"refused: {answer['refusal']['message']}")
    else:
        output.note(
            "* marks the chosen placement; speeds are predictions for one stream and a "
            "short context"
        )


def _row(preview: dict[str, Any]) -> tuple[Any, ...]:
    plan = preview["plan"]
    if plan is None:
        why = str(preview["refusal"]["message"])
        short = why if len(why) <= WIDTH else why[: WIDTH - 3] + "..."
        return ("", preview["size"], preview["sharding"], "", "", short)
    mark = "*" if preview["chosen"] else ""
    fetch = size(plan["fetch_bytes"]) if plan["fetch_bytes"] else "-"
    where = ", ".join(_seat(rank) for rank in plan["ranks"])
    return (mark, preview["size"], preview["sharding"], f"{plan['tokens_per_s']:.1f}", fetch, where)


def _seat(rank: dict[str, Any]) -> str:
    layers = f"{rank['first_layer']}-{rank['last_layer'] - 1}"
    room = f"{size(rank['need_bytes'])} of {size(rank['usable_bytes'])}"
    shares = [DeviceShare.model_validate(share) for share in rank.get("devices", ())]
    on = f" on {shares_text(shares)}" if shares else ""
    return f"{rank['name']} {layers} ({room}){on}"


def _show_plan(output: Output, plan: dict[str, Any]) -> None:
    rows = [
        (
            rank["rank"],
            rank["name"],
            f"{rank['first_layer']}-{rank['last_layer'] - 1}",
            size(rank["need_bytes"]),
            size(rank["usable_bytes"]),
            f"{rank['stage_ms']:.1f}",
        )
        for rank in plan.get("ranks", ())
    ]
    output.table(("rank", "node", "layers", ">needs", ">of", ">ms a token"), rows)
    for rank in plan.get("ranks", ()):
        if rank.get("devices"):
            shares = [DeviceShare.model_validate(share) for share in rank["devices"]]
            output.note(f"rank {rank['rank']} on {rank['name']}: {shares_text(shares)}")
    for link in plan.get("links", ()):
        speed = f"{link['latency_us']:.0f} us, {size(link['bytes_per_s'])}/s"
        how = "measured" if link["measured"] else "assumed"
        output.note(f"{link['from']} - {link['to']}: {speed}, {how}")
    if plan.get("evicts"):
        output.say(f"{', '.join(plan['evicts'])} would be evicted: {plan['why']}")


def _rank_rows(instance: Instance, names: dict[str, str]) -> list[tuple[Any, ...]]:
    return [
        (
            shard.rank,
            names.get(shard.node, shard.node),
            f"{shard.first_layer}-{shard.last_layer - 1}",
            size(shard.bytes_reserved),
        )
        for shard in instance.shards
    ]
