"""Talks to clients about a model card, the `card.toml` with a model's settings: reads, writes and
deletes the card on all nodes that have the model.

Clients send a card as TOML, or its settings as JSON. An invalid card is refused before any node
gets it. Changing a card needs the permission to delete models. The answer is sent once the nodes
report that they use the new card.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Sequence
from typing import Any

from falcon.asgi import Request, Response

from bus.models.cards import BadCard, all_settings, card_text, check_keys, read_card
from bus.wire.calls.models import CardOnNode
from bus.wire.cards import ModelCard
from bus.wire.errors import BadRequest
from bus.wire.ids import ModelId, NodeId
from gateway.control.card_files import CardChanged, newest_of, tag_of
from gateway.dialects import body as bodies
from gateway.dialects.body import Closed
from gateway.dialects.dialect import Limits
from gateway.dialects.faults import HttpFault, HttpFaultRaised, unknown_model
from gateway.http.callers import key_behind
from gateway.http.middleware import COMMAND_BYTES, Resource, answer_json, read_body
from gateway.requests.catalog import whole_model

NOTICED_S, LOOK_S = 15.0, 0.05
"""How long to wait until all nodes report the new card; a worker scans about once a second."""
SAME_S = 0.01
"""Tolerance when file times are compared."""
JSON = "application/json"
RETRY_S = 5.0


class CardBody(Closed):
    """`PUT /models/card/{name}` in JSON: the whole new card, without the keys that are null. A body
    in TOML is the text of a `card.toml`, which has the same keys."""

    aliases: list[str] | None = None
    system: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | list[str] | None = None
    thinking_default: bool | None = None
    pin: bool | None = None
    priority: str | int | None = None
    adapter: str | None = None
    adapters: list[str] | None = None
    context_tokens: int | None = None
    default_max_tokens: int | None = None
    keep_alive_s: float | None = None
    kv: str | None = None
    memory_bytes: int | None = None
    metal_fast_synch: bool | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    special_tokens_in_messages: bool | None = None
    speculate: str | None = None
    draft_model: str | None = None
    mtp_folder: str | None = None
    mtp_depth: int | None = None
    block_folder: str | None = None
    prefill_on: str | None = None
    compatible_backends: list[str] | None = None
    backend_preference: list[str] | None = None
    name: str | None = None
    summary: str | None = None
    license: str | None = None


class ModelCardResource(Resource):
    """`/models/card/{name}`: the `card.toml` of a model, on all nodes that have it."""

    async def on_get(self, req: Request, resp: Response, name: str) -> None:
        """Answer with the newest `card.toml` of the model, the settings that result (each with its
        source), and the `card.toml` on each node."""
        card = await self._model(name)
        cards_on_nodes = await self.cluster.card_files.read(card.model, key_behind(req))
        newest = newest_of(cards_on_nodes)
        resp.set_header("etag", f'"{tag_of(newest)}"')
        settings = {
            key: {"value": value, "source": source, "remark": remark}
            for key, value, source, remark in all_settings(card)
        }
        nodes = [_node_entry(card_on_node, newest) for card_on_node in cards_on_nodes]
        answer_json(
            resp,
            {"model": card.model, **_newest_entry(newest), "settings": settings, "nodes": nodes},
        )

    async def on_put(self, req: Request, resp: Response, name: str) -> None:
        """Write the model's `card.toml` on all nodes, and answer with each node's result. 412 if
        the file has changed since the tag of `If-Match`; 409 if no node could write it."""
        text = await self._text(req)
        card = await self._model(name)
        try:
            results = await self.cluster.card_files.write(
                card.model, text, key_behind(req), _if_match(req)
            )
        except CardChanged as error:
            raise HttpFaultRaised(HttpFault(412, "card_changed", str(error))) from error
        _check_done(card.model, results)
        changed = [result for result in results if result.done]
        newest = newest_of(changed)
        in_force = await self._wait_until_in_force(card.model, changed)
        resp.set_header("etag", f'"{tag_of(newest)}"')
        self._answer(resp, card.model, results, in_force)

    async def on_delete(self, req: Request, resp: Response, name: str) -> None:
        """Delete the `card.toml` on all nodes, and answer with each node's result. 404 if no node
        has one."""
        card = await self._model(name)
        try:
            results = await self.cluster.card_files.remove(
                card.model, key_behind(req), _if_match(req)
            )
        except CardChanged as error:
            raise HttpFaultRaised(HttpFault(412, "card_changed", str(error))) from error
        if not any(result.done or result.text is not None or result.unknown for result in results):
            raise HttpFaultRaised(
                HttpFault(404, "card_not_found", f"{card.model} has no card on any node", "model")
            )
        _check_done(card.model, results)
        changed = [result for result in results if result.done]
        in_force = await self._wait_until_in_force(card.model, changed)
        self._answer(resp, card.model, results, in_force)

    async def _model(self, name: str) -> ModelCard:
        """Return the model on a disk that a name means. Raises HttpFaultRaised (404)."""
        catalog = self.cluster.catalog
        await catalog.wait_known()
        now = self.cluster.reactor.now()
        model, cards = whole_model(catalog, name, now), catalog.cards()
        if model not in cards:
            raise HttpFaultRaised(unknown_model(name, sorted(cards)))
        return cards[model]

    async def _text(self, req: Request) -> str:
        """Return the text of the model card in a body. For an invalid card, raises BadRequest,
        which names the key and, for TOML, the line. Raises HttpFaultRaised if the body cannot be
        read."""
        options = self.cluster.options
        body = await read_body(req, min(options.body_limit_bytes, COMMAND_BYTES), options.body_s)
        kind = (req.content_type or "").partition(";")[0].strip().casefold()
        try:
            if kind != JSON:
                _check_template(read_card(body).template)
                return body.decode()
            limits = Limits(depth=options.body_depth, strict_fields=True)
            fields = bodies.read_object(body, limits)
            check_keys(fields)
            _check_template(fields.pop("template", None))
            card, _ = bodies.validate(CardBody, fields, strict=True)
            text = card_text(card.model_dump(exclude_none=True))
            read_card(text.encode())
            return text
        except BadCard as error:
            raise BadRequest(f"invalid card: {error}", field=error.key or None) from error
        except UnicodeEncodeError as error:
            raise BadRequest("invalid card: it contains an unpaired surrogate") from error

    async def _wait_until_in_force(self, model: ModelId, changed: Sequence[CardOnNode]) -> bool:
        """Wait at most `NOTICED_S` until each of the nodes reports its changed card. Return whether
        all did."""
        give_up_at = self.cluster.reactor.now() + NOTICED_S
        while self.cluster.reactor.now() < give_up_at:
            cards = self._listed(model)
            if all(_is_current(cards.get(card.node), card) for card in changed):
                return True
            await asyncio.sleep(LOOK_S)
        return False

    def _listed(self, model: ModelId) -> dict[NodeId, ModelCard]:
        """Return what each node that has the model reports about it."""
        nodes = self.cluster.readings.cards(self.cluster.reactor.now())
        return {node.node: card for node in nodes for card in node.models if card.model == model}

    def _answer(
        self, resp: Response, model: ModelId, results: Sequence[CardOnNode], in_force: bool
    ) -> None:
        newest = newest_of(results)
        seen = self.cluster.readings.passed_over(self.cluster.reactor.now())
        remarks = {
            f"{notice.why}; {notice.remedy}": None
            for _, notice in seen
            if notice.taken and notice.name == model and notice.reason != "odd_name"
        }
        nodes = [{**_node_entry(result, newest), "done": result.done} for result in results]
        answer_json(
            resp,
            {
                "model": model,
                **_newest_entry(newest),
                "in_force": in_force,
                "remarks": list(remarks),
                "nodes": nodes,
            },
        )


def _if_match(req: Request) -> str:
    """Return the tag in the header `If-Match`; empty without this header or for `*`."""
    tag = (req.get_header("if-match") or "").strip().removeprefix("W/").strip('"')
    return "" if tag == "*" else tag


def _is_current(listed: ModelCard | None, card: CardOnNode) -> bool:
    """Return whether the model card that a node reported agrees with the `card.toml` on its
    disk."""
    if listed is None:  # the model was deleted meanwhile
        return True
    if card.text is None:
        return not listed.noted and not listed.card_at_s
    return listed.card_at_s >= card.at_s - SAME_S


def _check_done(model: ModelId, results: Sequence[CardOnNode]) -> None:
    """Raise HttpFaultRaised if no node was changed: 409 if a node says why, else 503."""
    if any(result.done for result in results):
        return
    refusals = [result for result in results if result.kept]
    if refusals:
        text = "; ".join(f"{refusal.name}: {refusal.kept}" for refusal in refusals)
        raise HttpFaultRaised(HttpFault(409, "card_kept", f"the card was not changed: {text}"))
    text = "; ".join(result.unknown for result in results) or f"no node has {model}"
    raise HttpFaultRaised(HttpFault(503, "unavailable", text, retry_after_s=RETRY_S))


def _check_template(template: object) -> None:
    """Raise BadCard if a new card has a Go template."""
    if template:
        text = "shoal runs no Go templates; delete `template` to use the model's own template"
        raise BadCard(text, "template")


def _newest_entry(newest: CardOnNode | None) -> dict[str, Any]:
    """Return the newest `card.toml`: its text, its settings, its tag, and why it is invalid, if it
    is."""
    text = None if newest is None else newest.text
    fields: dict[str, Any] = {"toml": text, "card": None, "refused": "", "tag": tag_of(newest)}
    if newest is None or text is None:
        return {**fields, "written_at_s": None}
    try:
        read_card(text.encode())
        fields["card"] = tomllib.loads(text)
    except BadCard as error:
        fields["refused"] = str(error)
    return {**fields, "written_at_s": newest.at_s}


def _node_entry(card: CardOnNode, newest: CardOnNode | None) -> dict[str, Any]:
    """Return the `card.toml` of a node, compared with the newest one."""
    has = card.text is not None
    return {
        "node": card.node,
        "name": card.name,
        "folder": card.folder,
        "has_card": has,
        "is_newest": has and newest is not None and card.text == newest.text,
        "written_at_s": card.at_s if has else None,
        "kept": card.kept,
        "unknown": card.unknown,
    }
