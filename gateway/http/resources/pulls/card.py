"""Talks to clients about a model's card: reads it, writes it on each node that has the model, takes
it away there.

A card is written as TOML, or as JSON of its settings, and refused before any node has it where a
card may not say that. Who may change one is who may delete models. The answer comes once this
process hears that the nodes go by what was written.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Sequence
from typing import Any

from falcon.asgi import Request, Response

from bus.wire.cards import ModelCard
from bus.wire.errors import BadRequest
from bus.wire.ids import ModelId, NodeId
from bus.wire.model_cards import BadCard, all_settings, card_text, check_keys, read_card
from gateway.cluster.card_files import CardChanged, CardOnNode, newest_of, tag_of
from gateway.dialects import body as bodies
from gateway.dialects.body import Closed
from gateway.dialects.dialect import Limits
from gateway.dialects.faults import HttpFault, HttpFaultRaised, unknown_model
from gateway.http.middleware import COMMAND_BYTES, Resource, answer_json, read_body

NOTICED_S, LOOK_S = 15.0, 0.05
"""A worker looks at its disk each second or so."""
SAME_S = 0.01
JSON = "application/json"
RETRY_S = 5.0


class CardBody(Closed):
    """`PUT /models/card/{name}` in JSON: what the card is to say, all of it; what is left out or
    null is not said. As TOML the same keys stand in the body as they do in a `card.toml`."""

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
    compatible_backends: list[str] | None = None
    backend_preference: list[str] | None = None
    name: str | None = None
    summary: str | None = None
    license: str | None = None


class ModelCardResource(Resource):
    """`/models/card/{name}`: the `card.toml` of a model, on all nodes that have it."""

    async def on_get(self, req: Request, resp: Response, name: str) -> None:
        """Answer with what the newest card says, what comes of it, and the card of each node."""
        card = await self._model(name)
        found = await self.service.card_files.read(card.model)
        newest = newest_of(found)
        resp.set_header("etag", f'"{tag_of(newest)}"')
        settings = {
            key: {"value": value, "source": source, "remark": remark}
            for key, value, source, remark in all_settings(card)
        }
        told = [_told(one, newest) for one in found]
        answer_json(
            resp, {"model": card.model, **_said(newest), "settings": settings, "nodes": told}
        )

    async def on_put(self, req: Request, resp: Response, name: str) -> None:
        """Write it, and answer with what came of it at each node. 412 where it is not, any more,
        what `If-Match` names; 409 where no node took it."""
        text = await self._text(req)
        card = await self._model(name)
        try:
            found = await self.service.card_files.write(card.model, text, _begun_with(req))
        except CardChanged as error:
            raise HttpFaultRaised(HttpFault(412, "card_changed", str(error))) from error
        _check_done(card.model, found)
        newest = newest_of(one for one in found if one.done)
        in_force = await self._noticed(card.model, [one for one in found if one.done])
        resp.set_header("etag", f'"{tag_of(newest)}"')
        self._answer(resp, card.model, found, in_force)

    async def on_delete(self, req: Request, resp: Response, name: str) -> None:
        """Take it away from each node, and answer with what came of it. 404 where none has one."""
        card = await self._model(name)
        try:
            found = await self.service.card_files.remove(card.model, _begun_with(req))
        except CardChanged as error:
            raise HttpFaultRaised(HttpFault(412, "card_changed", str(error))) from error
        if not any(one.done or one.text is not None or one.unknown for one in found):
            raise HttpFaultRaised(
                HttpFault(404, "card_not_found", f"{card.model} has no card on any node", "model")
            )
        _check_done(card.model, found)
        in_force = await self._noticed(card.model, [one for one in found if one.done])
        self._answer(resp, card.model, found, in_force)

    async def _model(self, name: str) -> ModelCard:
        """Return the model on disk that a name means. Raises HttpFaultRaised (404)."""
        catalog = self.service.catalog
        await catalog.wait_known()
        model, cards = catalog.named(name), catalog.cards()
        if model not in cards:
            raise HttpFaultRaised(unknown_model(name, sorted(cards)))
        return cards[model]

    async def _text(self, req: Request) -> str:
        """Return the text of the card in a body. Raises BadRequest, naming the key and, of TOML,
        its line; HttpFaultRaised."""
        options = self.service.options
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
            asked, _ = bodies.validate(CardBody, fields, strict=True)
            text = card_text(asked.model_dump(exclude_none=True))
            read_card(text.encode())
            return text
        except BadCard as error:
            raise BadRequest(f"invalid card: {error}", field=error.key or None) from error
        except UnicodeEncodeError as error:
            raise BadRequest("invalid card: it contains half a character") from error

    async def _noticed(self, model: ModelId, found: Sequence[CardOnNode]) -> bool:
        """Wait until this process hears that each of the nodes goes by its card; returns whether it
        has, after `NOTICED_S` at most."""
        give_up_at = self.service.reactor.now() + NOTICED_S
        while self.service.reactor.now() < give_up_at:
            known = self._known(model)
            if all(_goes_by(known.get(one.node), one) for one in found):
                return True
            await asyncio.sleep(LOOK_S)
        return False

    def _known(self, model: ModelId) -> dict[NodeId, ModelCard]:
        cards = self.service.readings.cards(self.service.reactor.now())
        return {card.node: one for card in cards for one in card.models if one.model == model}

    def _answer(
        self, resp: Response, model: ModelId, found: Sequence[CardOnNode], in_force: bool
    ) -> None:
        newest = newest_of(found)
        seen = self.service.readings.passed_over(self.service.reactor.now())
        remarks = {
            f"{one.why}; {one.remedy}": None
            for _, one in seen
            if one.taken and one.name == model and one.reason != "odd_name"
        }
        told = [{**_told(one, newest), "done": one.done} for one in found]
        answer_json(
            resp,
            {
                "model": model,
                **_said(newest),
                "in_force": in_force,
                "remarks": list(remarks),
                "nodes": told,
            },
        )


def _begun_with(req: Request) -> str:
    """Return the tag of the card that a client began with; empty where it does not say."""
    said = (req.get_header("if-match") or "").strip().removeprefix("W/").strip('"')
    return "" if said == "*" else said


def _goes_by(known: ModelCard | None, one: CardOnNode) -> bool:
    """Return whether a node has told of its card as it is now."""
    if known is None:  # the model was deleted meanwhile
        return True
    if one.text is None:
        return not known.noted and not known.card_at_s
    return known.card_at_s >= one.at_s - SAME_S


def _check_done(model: ModelId, found: Sequence[CardOnNode]) -> None:
    """Raise HttpFaultRaised where no node was changed: 409 where the nodes say why, else 503."""
    if any(one.done for one in found):
        return
    kept = [one for one in found if one.kept]
    if kept:
        text = "; ".join(f"{one.name}: {one.kept}" for one in kept)
        raise HttpFaultRaised(HttpFault(409, "card_kept", f"the card was not changed: {text}"))
    text = "; ".join(one.unknown for one in found) or f"no node has {model}"
    raise HttpFaultRaised(HttpFault(503, "unavailable", text, retry_after_s=RETRY_S))


def _check_template(template: object) -> None:
    """Raise BadCard where a card that is written has a template in Go's language."""
    if template:
        text = "shoal runs no Go templates; delete `template`, to use the model's own template"
        raise BadCard(text, "template")


def _said(newest: CardOnNode | None) -> dict[str, Any]:
    """Return the newest card: its text, its settings, and why it is refused where it is."""
    text = None if newest is None else newest.text
    told: dict[str, Any] = {"toml": text, "card": None, "refused": "", "tag": tag_of(newest)}
    if newest is None or text is None:
        return {**told, "written_at_s": None}
    try:
        read_card(text.encode())
        told["card"] = tomllib.loads(text)
    except BadCard as error:
        told["refused"] = str(error)
    return {**told, "written_at_s": newest.at_s}


def _told(one: CardOnNode, newest: CardOnNode | None) -> dict[str, Any]:
    """Return the card of a node beside the newest."""
    has = one.text is not None
    return {
        "node": one.node,
        "name": one.name,
        "folder": one.folder,
        "has_card": has,
        "is_newest": has and newest is not None and one.text == newest.text,
        "written_at_s": one.at_s if has else None,
        "kept": one.kept,
        "unknown": one.unknown,
    }
