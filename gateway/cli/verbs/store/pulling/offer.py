"""Talks to the terminal and to the node's API: offers to pull a model that no node has.

The offer shows the size of the download, the nodes where the model would run, and the predicted
speed. Callers make it only on a terminal.
"""

from __future__ import annotations

import difflib
from typing import Any, NoReturn
from urllib.parse import quote

import typer

from gateway.cli.command import Invocation
from gateway.cli.node.node_api import NodeApi
from gateway.cli.output.errors import NOT_FOUND, CliError
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.store.pulling.plan import offer_rows
from gateway.cli.verbs.store.pulling.pull import plan_of, pull_to

NO_SUCH = ("invalid_value", "hub_model_not_found")
"""Error codes of a plan for a name that the hub does not have."""


def pull_if_missing(invocation: Invocation, model: str) -> None:
    """Return at once if a request can name the model. Otherwise offer to pull the model, and return
    once it is there. Raises CliError if the hub lacks the model, or if the user declines."""
    api, output = invocation.api(), invocation.output
    if _is_known(api, model):
        return
    with output.waiting() as wait:
        wait(f"no node has {model}; asking the hub for it")
        try:
            plan = plan_of(invocation, model)
        except CliError as problem:
            if problem.error_code in NO_SUCH:
                _refuse(api, model, problem)
            raise
    _show(output, model, plan)
    if plan["fits"] == "never":
        remedy = f"pull it nevertheless with `shoal pull {model} --anyway`"
        raise CliError(f"{plan['model']} does not fit: {plan['why']}", remedy=remedy)
    if not typer.confirm("Pull it now?", err=True, default=None):
        text, remedy = f"no node has {model}", f"pull it with `shoal pull {model}`"
        raise CliError(text, remedy=remedy, code=NOT_FOUND)
    pull_to(invocation, model)


def _is_known(api: NodeApi, model: str) -> bool:
    """Return whether the name means a model on a disk, a derived model, an adapter or a task."""
    try:
        api.get(f"/v1/models/{quote(model, safe='/:')}")
    except CliError as problem:
        if problem.code != NOT_FOUND:
            raise
        return False
    return True


def _refuse(api: NodeApi, model: str, problem: CliError) -> NoReturn:
    """Raise CliError for a model that no node and no hub has. It names a known model whose name is
    similar, else says what is wrong."""
    ids = [str(row["id"]) for row in api.get("/v1/models")["data"]]
    near = difflib.get_close_matches(model, ids, n=1)
    if not near:
        raise problem
    text = f"no model {model!r}; did you mean {near[0]!r}?"
    raise CliError(text, remedy=f"use `shoal run {near[0]}`", code=NOT_FOUND)


def _show(output: Output, model: str, plan: dict[str, Any]) -> None:
    output.say(f"no node has {model}" + (f" ({plan['model']})" if plan["known_as"] else ""))
    for name, text in offer_rows(plan):
        output.say(f"{name:<10}{text}")
