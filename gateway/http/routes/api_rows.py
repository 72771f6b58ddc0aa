"""Talks to falcon: the rows of the APIs, made from their own tables (`gateway.dialects`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from bus.wire.api_keys import Scope
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
from gateway.http.resources.exchange import (
    EmbedResource,
    GenerateResource,
    ListedAnswers,
    ReadPromptResource,
)

PULLS = (400, 401, 404, 409, 429, 500, 502, 504, 507)


def _mark_of(api: Api, path: str) -> str:
    """Return the header of an API's clients, for a path that another API answers too."""
    others = (one.path for other in APIS if other is not api for one in other.endpoints)
    return api.marked_by if path in others else ""


def _scope_of(endpoint: Endpoint) -> Scope:
    """Return what an API key needs for an endpoint: what fetches, makes or deletes models is for
    those who run the cluster."""
    runs = isinstance(endpoint, DeletesModel | DerivesModel | FetchesModel)
    return "admin" if runs else "inference"


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
                    partial(GenerateResource, dialect=dialect),
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
                yield asks(partial(ReadPromptResource, dialect=dialect), body=body, answer=answer)
            case Embeds(dialect=dialect, body=body, answer=answer):
                asks = partial(post, errors=GENERATION_ERRORS, counts=True)
                yield asks(partial(EmbedResource, dialect=dialect), body=body, answer=answer)
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
            case Says(answer=said, shown=shown):
                yield get(partial(pages.Constant, answer=said), answer=shown, errors=(401,))


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
            one = partial(models.ModelOfPath, endpoint=endpoint)
            return get(one, answer=answer, errors=(401, 404))
        case ShowsAsked(body=body, shown=shown):
            asked = partial(models.ModelOfBody, endpoint=endpoint)
            return post(asked, body=body, answer=shown, errors=(400, 401, 404))


def _rows_of_kept(api: Api, endpoint: KeepsAnswers) -> Iterator[Route]:
    what, kept = endpoint.what, f"{endpoint.path}/{{answer_id}}"
    errors = (400, 401, 404, 503, 504)
    row = partial(
        Route, tag=api.title, envelope=api.envelope, errors=errors, scope=_scope_of(endpoint)
    )
    listed = isinstance(endpoint, KeepsListed)
    shown = partial(answers.LabelledAnswer if listed else jobs.BackgroundAnswer, endpoint=endpoint)
    told_as = endpoint.shown
    replays = "text/event-stream" if endpoint.replayed is not None else None
    one = partial(row, answer=told_as.answer)
    yield one("GET", kept, f"A {endpoint.summary}", resource=shown, streams=replays,
              event=told_as.event)  # fmt: skip
    yield row("DELETE", kept, f"Keep a {what.lower()} no longer", resource=shown,
              answer=told_as.deleted)  # fmt: skip
    if isinstance(endpoint, KeepsListed):
        yield from _rows_of_listed(api, endpoint, one, shown)
    else:
        stopped = partial(jobs.BackgroundCancel, endpoint=endpoint)
        yield one("POST", f"{kept}/cancel", "Stop the making of one", resource=stopped)
    of_items = answers.AnswerItems if listed else jobs.BackgroundItems
    items = partial(of_items, endpoint=endpoint)
    told = f"The {_words(endpoint.items_at)} that one was made from (?limit=, ?order=, ?after=)"
    yield row("GET", f"{kept}/{endpoint.items_at}", told, resource=items, answer=told_as.items)


def _rows_of_conversations(api: Api, endpoint: KeepsConversations) -> Iterator[Route]:
    one = f"{endpoint.path}/{{conversation_id}}"
    items, item = f"{one}/items", f"{one}/items/{{item_id}}"
    row = partial(
        Route,
        tag=api.title,
        envelope=api.envelope,
        errors=(400, 401, 404, 413, 503, 504),
        scope=_scope_of(endpoint),
    )
    begins = partial(conversations.ConversationList, endpoint=endpoint)
    told = partial(conversations.OneConversation, endpoint=endpoint)
    listed = partial(conversations.ConversationItems, endpoint=endpoint)
    single = partial(conversations.ConversationItem, endpoint=endpoint)
    what = endpoint.summary
    tells = partial(row, answer=endpoint.answer)
    lists = partial(row, resource=listed, answer=endpoint.listing)
    yield tells("POST", endpoint.path, f"Begin a {what}", resource=begins, body=endpoint.body)
    yield tells("GET", one, f"A {what}, without its items", resource=told)
    labels = endpoint.labels_body
    yield tells("POST", one, f"Give a {what} other labels", resource=told, body=labels)
    yield row(
        "DELETE", one, f"Remove a {what} and its items", resource=told, answer=endpoint.removed
    )
    yield lists("POST", items, f"Add items to a {what}", body=endpoint.items_body)
    page = f"The items of a {what} (?limit=, ?order=, ?after=, ?include=)"
    yield lists("GET", items, page)
    yield row("GET", item, f"An item of a {what} (?include=)", resource=single)
    yield tells("DELETE", item, f"Remove an item of a {what}", resource=single)


def _words(items_at: str) -> str:
    return items_at.removeprefix("input_")


def _rows_of_listed(
    api: Api, endpoint: KeepsListed, row: partial[Route], shown: Any
) -> Iterator[Route]:
    path = endpoint.path
    made = (one for one in api.endpoints if isinstance(one, Generates) and one.path == path)
    both = partial(ListedAnswers, dialect=next(made).dialect, endpoint=endpoint)
    told = f"Each {endpoint.summary} (?limit=, ?order=, ?after=, ?model=, ?metadata[name]=)"
    yield row("GET", path, told, resource=both, answer=endpoint.shown.listing)
    kept = f"{path}/{{answer_id}}"
    yield row("POST", kept, f"Give a {endpoint.what.lower()} other labels",
              resource=shown, body=endpoint.body)  # fmt: skip
