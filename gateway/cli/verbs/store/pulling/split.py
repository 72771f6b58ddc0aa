"""Talks to the node's API: `shoal pull --split` has several nodes download their own layers of one
model, and shows the progress of all."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rich.progress import DownloadColumn

from gateway.cli.command import Invocation
from gateway.cli.output.amounts import size
from gateway.cli.output.errors import CliError
from gateway.cli.output.terminal import Output

SPLIT_S = 120.0
"""The nodes need up to a minute for the hub's list of files, and then begin."""
LOOK_S = 0.5
ENDED = ("done", "failed", "paused", "cancelled")
GONE_S = 60.0
"""A node that reports no pull for this long is not waited for."""


def pull_split(
    invocation: Invocation, model: str, nodes: Sequence[str], *, dry_run: bool, detach: bool
) -> None:
    """Show which node gets which layers. Unless this is a dry run, begin the pulls, and with
    `detach` False wait for them. Raises CliError if a pull fails."""
    output = invocation.output
    body = {"model": model, "split": list(nodes), "dry_run": dry_run}
    split = cast(dict[str, Any], invocation.api().post("/models/pull", body, timeout_s=SPLIT_S))
    if split["known_as"]:
        output.note(f"{split['known_as']} stands for {split['model']}")
    rows = [
        (
            node["name"],
            f"{node['first_layer']} to {node['last_layer'] - 1} of {split['layers']}",
            size(node["fetch_bytes"]),
            size(node["missing_bytes"]) if node["missing_bytes"] else "-",
        )
        for node in split["nodes"]
    ]
    output.table(("node", "layers", ">to download, about", ">disk space lacking"), rows)
    why = [f"{node['name']}: {node['why']}" for node in split["nodes"] if node["why"]]
    if why:
        remedy = (
            f"see `shoal pulls`; end the other pulls with `shoal pulls cancel {split['model']}`"
        )
        raise CliError(f"{len(why)} nodes did not begin: {'; '.join(why)}", remedy=remedy)
    if dry_run or detach:
        output.document(split)
        if detach:
            output.note("see `shoal pulls`")
        return
    output.note(f"Ctrl-C does not end these pulls; `shoal pulls cancel {split['model']}` does")
    output.document({**split, "nodes": _followed(invocation, output, split)})
    output.say(f"pulled {split['model']} by layers")
    output.note(f'try it: `shoal run {split["model"]} "..."`')


def _followed(
    invocation: Invocation, output: Output, split: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Show the progress of all nodes until each pull has ended. Return the last row of each pull.
    Raises CliError if one failed."""
    api, model = invocation.api(), split["model"]
    wanted = {node["node"] for node in split["nodes"]}
    last: dict[str, dict[str, Any]] = {}
    seen_at = dict.fromkeys(wanted, time.monotonic())
    with output.progress(f"pulling {model}", DownloadColumn()) as show:
        while True:
            pulls = cast(dict[str, Any], api.get("/models/pulls"))["pulls"]
            rows = {row["node"]: row for row in pulls if row["model"] == model}
            last |= {node: rows[node] for node in wanted & rows.keys()}
            seen_at |= dict.fromkeys(wanted & rows.keys(), time.monotonic())
            done = sum(row["completed"] for row in last.values())
            total = sum(row["total"] for row in last.values())
            show(f"pulling {model}", completed=done, total=total or None)
            live = {node for node in wanted if last.get(node, {}).get("state") not in ENDED}
            if not live:
                break
            if any(time.monotonic() - seen_at[node] > GONE_S for node in live):
                text = f"a node has reported no pull of {model} for {GONE_S:g} s"
                raise CliError(text, remedy="see `shoal nodes` and `shoal pulls`")
            time.sleep(LOOK_S)
    failed = [row for row in last.values() if row["state"] != "done"]
    if failed:
        reasons = "; ".join(f"{row['name']}: {row['message'] or row['state']}" for row in failed)
        remedy = f"continue with `shoal pulls resume {model}`"
        raise CliError(f"{len(failed)} of {len(wanted)} nodes failed: {reasons}", remedy=remedy)
    return list(last.values())
