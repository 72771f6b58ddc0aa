"""Talks to clients who search the hub for models, and to this node's worker, which asks the hub."""

from __future__ import annotations

from typing import Any, Literal

from falcon.asgi import Request, Response

from bus.calls import ask_service
from bus.models.gguf import repository_of
from bus.wire.errors import BadMessage, OwnerSilent, Unavailable
from bus.wire.messages.gateways import (
    MOST_FOUND,
    WORDS_CHARACTERS,
    AskSearch,
    FoundModel,
    SearchFound,
    SearchRefused,
)
from gateway.cluster import Cluster
from gateway.dialects.body import Closed, bad_field
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.middleware import Resource, answer_json
from gateway.http.query import number_of
from gateway.requests.pull_faults import of_pull

ANSWER_S = 90.0
"""A worker answers, or gives up, within this many seconds."""
LIMIT = 20


class SearchedModel(Closed):
    """A model of the hub that, according to the hub's list, can run here. A fact is null if the
    list lacks it. `for_mlx`: the model was made for MLX. `here` are the names of the nodes that
    have it, or a quantisation of it. `quantizations`: those of its GGUF files; pull one as
    MODEL:QUANTISATION."""

    model: str
    for_mlx: bool
    family: str | None
    makes: Literal["text", "embedding"]
    quantization: str | None
    size_bytes: int | None
    parameters: int | None
    downloads: int
    likes: int
    gated: bool
    changed_at: str | None
    quantizations: list[str]
    here: list[str]


class SearchAnswer(Closed):
    """The answer of `GET /models/search`; `left_out` counts the results that cannot run here."""

    query: str
    author: str
    hub: str
    left_out: int
    models: list[SearchedModel]


class SearchModels(Resource):
    """`GET /models/search?query=&author=&limit=`: search the hub for models."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Search the hub, and answer with the models that can run here."""
        question = AskSearch(
            words=_text_of(req, "query"),
            author=_text_of(req, "author"),
            limit=int(number_of(req, "limit", LIMIT, least=1, most=MOST_FOUND)),
        )
        if not question.words and not question.author:
            raise bad_field("query", "give words of a model's name, such as qwen3")
        cluster = self.cluster
        result = await _search(cluster, question)
        await cluster.catalog.wait_known()
        models = [_searched(cluster, model).model_dump(mode="json") for model in result.models]
        answer_json(
            resp,
            {
                "query": question.words,
                "author": question.author,
                "hub": result.hub,
                "left_out": result.left_out,
                "models": models,
            },
        )


async def _search(cluster: Cluster, question: AskSearch) -> SearchFound:
    """Return the results of this node's worker. Raises HttpFaultRaised."""
    address = cluster.bus.endpoints.worker
    try:
        answer = await ask_service(cluster.bus, address, question, ANSWER_S)
    except Unavailable:
        owner = f"the worker of node {cluster.options.node}"
        raise OwnerSilent(owner, ANSWER_S, "see `shoal nodes`") from None
    except BadMessage as error:
        text = f"the worker of this node sent an unknown answer: {error}"
        raise HttpFaultRaised(HttpFault(502, "worker_unknown", text)) from None
    if isinstance(answer, SearchRefused):
        raise HttpFaultRaised(of_pull(answer))
    if not isinstance(answer, SearchFound):
        text = (
            "the worker of this node sent an unknown answer; check that it runs the same version "
            "of shoal"
        )
        raise HttpFaultRaised(HttpFault(502, "worker_unknown", text))
    return answer


def _text_of(req: Request, name: str) -> str:
    text = " ".join((req.get_param(name) or "").split())
    if len(text) > WORDS_CHARACTERS or not text.isprintable():
        raise bad_field(name, f"must have at most {WORDS_CHARACTERS} printable characters")
    return text


def _searched(cluster: Cluster, model: FoundModel) -> SearchedModel:
    fields: dict[str, Any] = model.model_dump(mode="json")
    unknown = ("family", "quantization", "size_bytes", "parameters", "changed_at")
    optional = {name: fields[name] or None for name in unknown}
    cards = cluster.readings.cards(cluster.reactor.now())
    folded = model.model.casefold()
    here = sorted(
        card.name
        for card in cards
        if any(repository_of(own.model)[0].casefold() == folded for own in card.models)
    )
    return SearchedModel.model_validate({**fields, **optional, "here": here})
