"""Talks to falcon: builds the routes of each API from its endpoint table (`gateway.dialects`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Union, cast

from bus.wire.api_keys import Scope
from gateway.dialects import sse
from gateway.dialects.api_table import (
    Api,
    DeletesModel,
    DerivesModel,
    Embeds,
    Endpoint,
    FetchesModel,
    Generates,
    KeepsAnswers,
    KeepsConversations,
    KeepsListed,
    ListsModels,
    PagesModels,
    ReadsPrompt,
    Says,
    ShowsAsked,
    ShowsModel,
)
from gateway.dialects.registry import APIS
from gateway.http.openapi import GENERATION_ERRORS, Route
from gateway.http.resources import answers, conversations, deletions, jobs, models, pages, pulls
from gateway.http.resources.exchange import ExchangeResource, ListedAnswers

PULLS = (400, 401, 404, 409, 429, 500, 502, 504, 507)


def streamed_events() -> Any:
    """Return the union of the types of the events that clients can read again."""
    generating = (row for api in APIS for row in api.endpoints if isinstance(row, Generates))
    with_ids = (row for row in generating if row.dialect.stream_content_type == sse.CONTENT_TYPE)
    return cast(Any, Union)[tuple(row.event for row in with_ids)]


def _mark_of(api: Api, path: str) -> str:
    """Return the header that marks the API's clients, if another API has the same path; else ""."""
    others = (endpoint.path for other in APIS if other is not api for endpoint in other.endpoints)
    return api.marked_by if path in others else ""


def _scope_of(endpoint: Endpoint) -> Scope:
    """Return the scope that an API key needs: `admin` to pull, derive or delete models."""
    changes_models = isinstance(endpoint, DeletesModel | DerivesModel | FetchesModel)
    return "admin" if changes_models else "inference"


def rows_of(api: Api) -> Iterator[Route]:
    """Yield the routes of an API, in the order of its table."""
    for endpoint in api.endpoints:
        path, summary = endpoint.path, endpoint.summary
        marked_by, scope = _mark_of(api, path), _scope_of(endpoint)
        row = partial(Route, envelope=api.envelope, marked_by=marked_by, scope=scope)
        get = partial(row, "GET", path, summary, api.title)
        post = partial(row, "POST", path, summary, api.title)
        match endpoint:
            case Generates(
                dialect=dialect, body=body, answer=answer, event=event, ends_with=ends_with
            ):
                yield post(
                    partial(ExchangeResource, dialect=dialect, kind="generate"),
                    body=body,
                    answer=answer,
                    event=event,
                    ends_with=ends_with,
                    streams=dialect.stream_content_type,
                    errors=GENERATION_ERRORS,
                    counts=True,
                )
            case ReadsPrompt(dialect=dialect, body=body, answer=answer):
                asks = partial(post, errors=GENERATION_ERRORS, counts=True)
                yield asks(
                    partial(ExchangeResource, dialect=dialect, kind="ask"), body=body, answer=answer
                )
            case Embeds(dialect=dialect, body=body, answer=answer):
                asks = partial(post, errors=GENERATION_ERRORS, counts=True)
                yield asks(
                    partial(ExchangeResource, dialect=dialect, kind="embed"),
                    body=body,
                    answer=answer,
                )
            case ListsModels() | PagesModels() | ShowsModel() | ShowsAsked():
                yield _row_of_models(endpoint, get, post)
            case FetchesModel(body=body, streams=streams, shown=shown, event=event):
                fetch = partial(post, streams=streams, errors=PULLS, keyless="pulls")
                resource = partial(pulls.ModelToFetch, endpoint=endpoint)
                yield fetch(resource, body=body, answer=shown, event=event)
            case DeletesModel(body=body):
                delete = partial(Route, "DELETE", path, summary, api.title, envelope=api.envelope)
                resource = partial(deletions.ModelToDelete, endpoint=endpoint)
                yield delete(resource, body=body, answers="", errors=(400, 401, 403, 404, 409))
            case DerivesModel(body=body, streams=streams, shown=shown):
                answers_as = "application/json" if endpoint.lines else ""
                derive = partial(post, answers=answers_as, errors=(400, 401, 404, 409, 503))
                yield derive(
                    partial(models.ModelToDerive, endpoint=endpoint),
                    body=body,
                    streams=streams or None,
                    answer=shown,
                    event=shown,
                )
            case KeepsAnswers():
                yield from _rows_of_kept(api, endpoint)
            case KeepsConversations():
                yield from _rows_of_conversations(api, endpoint)
            case Says(answer=constant, shown=shown):
                yield get(partial(pages.Constant, answer=constant), answer=shown, errors=(401,))


def _row_of_models(
    endpoint: ListsModels | PagesModels | ShowsModel | ShowsAsked,
    get: partial[Route],
    post: partial[Route],
) -> Route:
    match endpoint:
        case ListsModels(answer=answer):
            return get(partial(models.ModelList, endpoint=endpoint), answer=answer, errors=(401,))
        case PagesModels(answer=answer):
            pages_of = partial(models.ModelPages, endpoint=endpoint)
            return get(pages_of, answer=answer, errors=(400, 401))
        case ShowsModel(answer=answer):
            of_path = partial(models.ModelOfPath, endpoint=endpoint)
            return get(of_path, answer=answer, errors=(401, 404))
        case ShowsAsked(body=body, shown=shown):
            of_body = partial(models.ModelOfBody, endpoint=endpoint)
            return post(of_body, body=body, answer=shown, errors=(400, 401, 404))


def _rows_of_kept(api: Api, endpoint: KeepsAnswers) -> Iterator[Route]:
    what, path = endpoint.what.lower(), f"{endpoint.path}/{{answer_id}}"
    errors = (400, 401, 404, 503, 504)
    row = partial(
        Route, tag=api.title, envelope=api.envelope, errors=errors, scope=_scope_of(endpoint)
    )
    listed = isinstance(endpoint, KeepsListed)
    shown = partial(answers.LabelledAnswer if listed else jobs.BackgroundAnswer, endpoint=endpoint)
    shapes = endpoint.shown
    replays = "text/event-stream" if endpoint.replayed is not None else None
    answers_it = partial(row, answer=shapes.answer)
    yield answers_it("GET", path, f"Get a {endpoint.summary}", resource=shown, streams=replays,
                     event=shapes.event)  # fmt: skip
    yield row("DELETE", path, f"Delete a {endpoint.summary}", resource=shown,
              answer=shapes.deleted)  # fmt: skip
    if isinstance(endpoint, KeepsListed):
        yield from _rows_of_listed(api, endpoint, answers_it, shown)
    else:
        stopped = partial(jobs.BackgroundCancel, endpoint=endpoint)
        yield answers_it("POST", f"{path}/cancel", f"Cancel a background {what}", resource=stopped)
    of_items = answers.AnswerItems if listed else jobs.BackgroundItems
    items = partial(of_items, endpoint=endpoint)
    summary = f"List the input {_words(endpoint.items_at)} of a {what} (?limit=, ?order=, ?after=)"
    yield row("GET", f"{path}/{endpoint.items_at}", summary, resource=items, answer=shapes.items)


def _rows_of_conversations(api: Api, endpoint: KeepsConversations) -> Iterator[Route]:
    path = f"{endpoint.path}/{{conversation_id}}"
    items, item = f"{path}/items", f"{path}/items/{{item_id}}"
    row = partial(
        Route,
        tag=api.title,
        envelope=api.envelope,
        errors=(400, 401, 404, 413, 503, 504),
        scope=_scope_of(endpoint),
    )
    begins = partial(conversations.ConversationList, endpoint=endpoint)
    single = partial(conversations.OneConversation, endpoint=endpoint)
    listed = partial(conversations.ConversationItems, endpoint=endpoint)
    single_item = partial(conversations.ConversationItem, endpoint=endpoint)
    what = endpoint.summary
    answers_it = partial(row, answer=endpoint.answer)
    lists = partial(row, resource=listed, answer=endpoint.listing)
    yield answers_it("POST", endpoint.path, f"Create a {what}", resource=begins, body=endpoint.body)
    yield answers_it("GET", path, f"Get a {what} without its items", resource=single)
    labels = endpoint.labels_body
    yield answers_it("POST", path, f"Change the metadata of a {what}", resource=single, body=labels)
    yield row(
        "DELETE", path, f"Delete a {what} and its items", resource=single, answer=endpoint.removed
    )
    yield lists("POST", items, f"Add items to a {what}", body=endpoint.items_body)
    page = f"List the items of a {what} (?limit=, ?order=, ?after=, ?include=)"
    yield lists("GET", items, page)
    yield row("GET", item, f"Get an item of a {what} (?include=)", resource=single_item)
    yield answers_it("DELETE", item, f"Delete an item of a {what}", resource=single_item)


def _words(items_at: str) -> str:
    return items_at.removeprefix("input_")


def _rows_of_listed(
    api: Api, endpoint: KeepsListed, row: partial[Route], shown: Any
) -> Iterator[Route]:
    path = endpoint.path
    generating = (row for row in api.endpoints if isinstance(row, Generates) and row.path == path)
    both = partial(
        ListedAnswers, dialect=next(generating).dialect, kind="generate", endpoint=endpoint
    )
    summary = f"List {endpoint.summary}s (?limit=, ?order=, ?after=, ?model=, ?metadata[name]=)"
    yield row("GET", path, summary, resource=both, answer=endpoint.shown.listing)
    yield row("POST", f"{path}/{{answer_id}}", f"Change the metadata of a {endpoint.summary}",
              resource=shown, body=endpoint.body)  # fmt: skip
