"""Talks to the node's API: `shoal card` shows and changes a model's card on all nodes that have the
model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer

from bus.models.cards import BadCard, beginning, read_card, with_setting
from bus.process.clock import wall
from bus.wire.ids import ModelId
from gateway.cli.command import Invocation
from gateway.cli.node.node_api import NodeApi
from gateway.cli.output.amounts import span
from gateway.cli.output.errors import NOT_FOUND, REFUSED, USAGE, CliError
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.models.instances import ModelName
from gateway.cli.verbs.models.setting_rows import rows_of
from gateway.cli.verbs.store.editing import edit_card, read_text

REMOVE_S = 90.0
Row = Mapping[str, Any]


def show(invocation: Invocation, model: ModelName) -> None:
    """Show the settings that a model is served with, where each setting comes from, and which nodes
    have the model's card."""
    card, output = _card(invocation.api(), model), invocation.output
    output.document(card)
    settings = [
        (name, setting["value"], setting["source"], setting["remark"])
        for name, setting in card["settings"].items()
    ]
    rows = [("model", card["model"]), ("card", _card_age(card)), *rows_of(settings)]
    rows += [(f"on {node['name']}", _on_node(node)) for node in card["nodes"]]
    output.table(("", ""), rows)
    if card["toml"] is None:
        output.note(f"`shoal card edit {card['model']}` writes a card")


def edit(invocation: Invocation, model: ModelName) -> None:
    """Edit a model's card in your editor ($VISUAL or $EDITOR). A valid card is written to all nodes
    that have the model."""
    api, output = invocation.api(), invocation.output
    card = _card(api, model)
    begun = card["toml"]
    shown = beginning(ModelId(card["model"])) if begun is None else begun
    with edit_card(shown, card["model"], output) as text:
        if text == shown:
            output.say("nothing was changed")
            output.document({"model": card["model"], "changed": False})
            return
        _write(api, output, card, text)


def add(
    invocation: Invocation,
    model: ModelName,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings to add, for example temperature=0.2."
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="File with a whole card; -: standard input."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an existing card by the file.")
    ] = False,
) -> None:
    """Add settings to a model's card, or write the card from a file, on all nodes that have the
    model."""
    api, output = invocation.api(), invocation.output
    if not settings and source is None:
        remedy = "use `shoal card add MODEL temperature=0.2`, or `--from FILE`"
        raise CliError("no settings for the card", remedy=remedy, code=USAGE)
    card = _card(api, model)
    text = card["toml"] or ""
    if source is not None:
        if card["toml"] is not None and not replace:
            remedy = "add `--replace`, or change it with `shoal card edit`"
            raise CliError(f"{card['model']} already has a card", remedy=remedy, code=REFUSED)
        text = read_text(source)
    try:
        for setting in settings or ():
            key, is_pair, value = setting.partition("=")
            if not is_pair:
                raise CliError(f"{setting!r} is not of the form KEY=VALUE", code=USAGE)
            text = with_setting(text, key.strip(), value.strip())
        read_card(text.encode())
    except BadCard as error:
        remedy = "nothing was written; see every key with `shoal card edit`"
        raise CliError(f"invalid card: {error}", remedy=remedy, code=USAGE) from error
    _write(api, output, card, text)


def remove(
    invocation: Invocation,
    model: ModelName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a model's card on all nodes that have the model."""
    api, output = invocation.api(), invocation.output
    if not yes:
        if output.as_json or not output.err.is_terminal:
            raise CliError(f"this deletes the card of {model}", remedy="confirm with --yes")
        typer.confirm(f"Delete the card of {model} on all nodes?", abort=True, err=True)
    answer = api.delete(_path(model), timeout_s=REMOVE_S)
    output.document(answer)
    _say_nodes(output, answer, "deleted the card of {}")


def export(invocation: Invocation, model: ModelName) -> None:
    """Print a model's card as TOML."""
    card, output = _card(invocation.api(), model), invocation.output
    if card["toml"] is None:
        remedy = f"`shoal card edit {card['model']}` writes a card"
        raise CliError(f"{card['model']} has no card", remedy=remedy, code=NOT_FOUND)
    output.document({name: card[name] for name in ("model", "toml", "card", "refused", "tag")})
    if not output.as_json:
        text = card["toml"]
        output.write(text if text.endswith("\n") else f"{text}\n")
    if card["refused"]:
        output.warn(f"this card has no effect: {card['refused']}")


def _path(model: str) -> str:
    return f"/models/card/{quote(model)}"


def _card(api: NodeApi, model: str) -> dict[str, Any]:
    return api.get(_path(model))


def _write(api: NodeApi, output: Output, before: Row, text: str) -> None:
    """Replace the card `before` by `text` on all nodes, and show the results."""
    answer = api.put_text(_path(before["model"]), text, tag=before["tag"])
    output.document(answer)
    _say_nodes(output, answer, "wrote the card of {}")
    for remark in answer["remarks"]:
        output.warn(remark)
    later = [
        name for name in answer["card"] or () if before["settings"].get(name, {}).get("remark")
    ]
    if later:
        output.note(f"{', '.join(later)}: from the model's next load; the rest applies at once")


def _say_nodes(output: Output, answer: Row, words: str) -> None:
    """Show the result of a change on each node."""
    done = [node["name"] for node in answer["nodes"] if node["done"]]
    output.say(f"{words.format(answer['model'])} on {', '.join(done)}")
    for node in answer["nodes"]:
        if not node["done"] and (node["kept"] or node["unknown"]):
            output.warn(f"not on {node['name']}: {node['kept'] or node['unknown']}")
    if not answer["in_force"]:
        output.note("not every node has confirmed the card yet; see `shoal card show`")


def _card_age(card: Row) -> str:
    """Return the age of a model card, and why it was refused if it was; "none" without a card."""
    if card["toml"] is None:
        return "none"
    ago = span(max(0.0, wall() - card["written_at_s"]))
    refused = f", and refused: {card['refused']}" if card["refused"] else ""
    return f"written {ago} ago{refused}"


def _on_node(node: Row) -> str:
    """Return the status of the card on a node, for people."""
    if node["unknown"]:
        return f"no answer: {node['unknown']}"
    what = "this card" if node["is_newest"] else "an older card" if node["has_card"] else "no card"
    return f"{what}, not changed: {node['kept']}" if node["kept"] else what
