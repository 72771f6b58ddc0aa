"""Failures as HTTP reports them: one table from shoal's reasons to HTTP statuses and error codes.

Pure. An `HttpFault` belongs to no dialect; each dialect renders it in its own form. The message is
for the client and says what to do. `Retry-After` is set if and only if a retry may help.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bus.models.lora import no_such_adapter
from bus.wire import errors
from bus.wire.cards import PassedOver, not_in_force
from bus.wire.messages.requests import ModelKind
from bus.wire.messages.tokens import Failed

OVERLOADED_RETRY_S = 1.0
"""The retry time in seconds for a full queue, if the refusal itself names none."""
UNAVAILABLE_RETRY_S = 5.0
"""The retry time in seconds for a model that is loading, draining or lost."""


@dataclasses.dataclass(frozen=True, slots=True)
class HttpFault:
    """A failure, for the client. `code` is stable, so that programs can rely on it. `field` is
    named in the client's terms. `facts` are numbers that explain the failure (position,
    prompt_tokens, limit_tokens, ...)."""

    status: int
    code: str
    message: str
    field: str | None = None
    retry_after_s: float | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    headers: tuple[tuple[str, str], ...] = ()


class HttpFaultRaised(errors.ShoalError):
    """Ends a request with `fault`. Raised only before any bytes of the answer are sent."""

    def __init__(self, fault: HttpFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    status: int
    code: str
    retry_after_s: float | None = None


REFUSALS: Mapping[errors.RefusalReason, _Row] = {
    "queue_full": _Row(429, "queue_full", OVERLOADED_RETRY_S),
    "context_length": _Row(400, "context_length_exceeded"),
    "bad_request": _Row(400, "invalid_value"),
    "draining": _Row(503, "draining", UNAVAILABLE_RETRY_S),
    "not_ready": _Row(503, "model_not_ready", UNAVAILABLE_RETRY_S),
    "wrong_generation": _Row(503, "model_unavailable", UNAVAILABLE_RETRY_S),
    "unknown_model": _Row(404, "model_not_found"),
    "no_capacity": _Row(503, "no_capacity", UNAVAILABLE_RETRY_S),
    "insufficient_memory": _Row(507, "insufficient_memory"),
    "disk_full": _Row(507, "insufficient_storage"),
    "weights_unavailable": _Row(503, "model_unavailable", UNAVAILABLE_RETRY_S),
    "unsupported": _Row(400, "unsupported"),
    "not_holder": _Row(503, "not_holder", UNAVAILABLE_RETRY_S),
    "no_majority": _Row(503, "no_majority", UNAVAILABLE_RETRY_S),
    "protocol": _Row(503, "protocol_mismatch"),
    "conflict": _Row(409, "conflict"),
    "unknown_instance": _Row(404, "instance_not_found"),
    "unknown_node": _Row(404, "node_not_found"),
    "unknown_key": _Row(404, "key_not_found"),
    "unknown_lease": _Row(404, "lease_not_found"),
    "pending": _Row(503, "model_loading", UNAVAILABLE_RETRY_S),
}

_PINNED = _Row(507, "no_capacity")  # waiting cannot help: pinned memory is never released

_OF_LIST = re.compile(r"(\w+)\[(\d+)\]\.(\w+)")

FAILURES: Mapping[errors.FailReason, _Row] = {
    "overloaded": _Row(429, "overloaded", OVERLOADED_RETRY_S),
    "context_length": _Row(400, "context_length_exceeded"),
    "model_unavailable": _Row(503, "model_unavailable", UNAVAILABLE_RETRY_S),
    "runner_lost": _Row(503, "runner_lost", UNAVAILABLE_RETRY_S),
    "deadline": _Row(504, "deadline_exceeded"),
    "bad_request": _Row(400, "invalid_value"),
    "memory_pressure": _Row(507, "memory_pressure", UNAVAILABLE_RETRY_S),
    "internal": _Row(500, "internal_error"),
}


def of_refusal(refusal: errors.Refusal) -> HttpFault:
    """Return the fault for a refusal, with the retry time and the queue position if the refusal has
    them."""
    facts = dict(refusal.facts)
    if refusal.position is not None:
        facts["position"] = refusal.position
    is_pinned = refusal.reason == "no_capacity" and "pinned" in facts
    row = _PINNED if is_pinned else REFUSALS[refusal.reason]
    return _by_row(row, refusal.message, refusal.field, refusal.retry_after_s, facts)


def of_failed(failed: Failed) -> HttpFault:
    """Return the fault for a request that ended early. `details` may contain the retry time and the
    field."""
    row = FAILURES[failed.reason]
    facts = dict(failed.details)
    path = facts.pop("field", None)
    retry_after_s = facts.pop("retry_after_s", None)
    field = path if isinstance(path, str) else None
    detail_s = float(retry_after_s) if isinstance(retry_after_s, int | float) else None
    return _by_row(row, failed.message, field, detail_s, facts)


def of_bad_request(error: errors.BadRequest) -> HttpFault:
    """Return the 400 for a body that shoal cannot accept."""
    return HttpFault(400, "invalid_value", error.message, field=error.field)


def of_overflow(error: errors.ContextOverflow) -> HttpFault:
    """Return the 400 for a prompt that is too long, in the wording that clients parse."""
    return HttpFault(
        400,
        "context_length_exceeded",
        str(error),
        facts={"prompt_tokens": error.prompt_tokens, "limit_tokens": error.limit_tokens},
    )


def of_error(error: Exception) -> HttpFault | None:
    """Return the fault for an error; None for an unexpected error, which is a failure of shoal
    itself."""
    match error:
        case HttpFaultRaised():
            return error.fault
        case errors.BadRequest():
            return of_bad_request(error)
        case errors.ContextOverflow():
            return of_overflow(error)
        case _:
            return None


def unknown_model(
    model: str, names: Sequence[str] = (), seen: tuple[str, PassedOver] | None = None
) -> HttpFault:
    """Return the 404 for an unknown model. The message names the command that downloads the model;
    nothing is downloaded now. `names` are the known models. `seen` is a node, and a file on its
    disk that the name may mean but that is not a usable model."""
    if seen is not None:
        node, file = seen
        if file.taken:
            text = f"model '{model}' not found: {not_in_force(file, node)}; {file.remedy}"
            return HttpFault(404, "model_not_found", text, field="model")
        kind = "a usable adapter" if ":" in file.name else "a model"
        text = f"model '{model}' not found: {file.path} on {node} is not {kind}, "
        return HttpFault(404, "model_not_found", f"{text}{file.why}; {file.remedy}", field="model")
    near = difflib.get_close_matches(model, names, n=1)
    hint = f"did you mean '{near[0]}'? Otherwise download it with" if near else "download it with"
    return HttpFault(
        404,
        "model_not_found",
        f"model '{model}' not found; {hint} `shoal pull {model}`",
        field="model",
    )


def unknown_adapter(name: str, model: str, adapter: str, adapters: Iterable[str]) -> HttpFault:
    """Return the 404 for `model:adapter` if the model has no such adapter."""
    text = f"model '{name}' not found: {no_such_adapter(model, adapter, adapters)}"
    return HttpFault(404, "model_not_found", text, field="model")


_OFFERS: Mapping[ModelKind, tuple[str, str, str]] = {
    "text": ("chat or completions", "a text model", ""),
    "embedding": (
        "embeddings",
        "an embedding model",
        ", which makes vectors from texts (use /v1/embeddings or /api/embed)",
    ),
    "reranker": ("reranking", "a reranker", ", which scores documents (use /v1/rerank)"),
}
"""By the kind of a model: the service, the kind's name, and the use of such a model."""


def makes_no_such(
    model: str, makes: ModelKind, wanted: ModelKind, others: Sequence[str]
) -> HttpFault:
    """Return the 400 for a request to a model of the wrong kind, such as a text model asked for
    vectors. `others` are the cluster's models of the `wanted` kind."""
    service, kind, _ = _OFFERS[wanted]
    _, own, use = _OFFERS[makes]
    text = f"'{model}' does not support {service}: it is {own}{use}"
    if wanted != "text":
        names = ", ".join(others[:8])
        none = f"the cluster has no {kind.partition(' ')[2]}"
        text = f"{text}; use {kind}: {names}" if names else f"{text}; {none}"
    return HttpFault(400, "unsupported", text, field="model")


def not_found(what: str) -> HttpFault:
    """Return the 404 for a path, or a thing named in a path, that does not exist."""
    return HttpFault(404, "not_found", f"{what} does not exist")


def answer_not_found(what: str, answer_id: str, field: str | None = None) -> HttpFault:
    """Return the fault for an answer that is not stored on this node: 404, or 400 if the body's
    `field` names the answer."""
    text = (
        f"{what} with id '{answer_id[:200]}' not found. The node that made an answer stores it for "
        "the API key of its request, until it is deleted, too old, or replaced by newer ones"
    )
    if field is None:
        return HttpFault(404, "not_found", text)
    return HttpFault(
        400, "previous_response_not_found", f"Previous {text[:1].lower()}{text[1:]}", field
    )


def answer_not_made(answer_id: str, state: str, field: str, is_open: bool) -> HttpFault:
    """Return the 400 for a body that continues an answer which is not complete yet or failed."""
    status = "in_progress" if state in ("loading", "running") else state
    rest = (
        f"wait until it has ended (GET /v1/responses/{answer_id[:200]}), then continue from it"
        if is_open
        else "that response has no answer to continue from; continue from the response before it"
    )
    text = f"Previous response with id '{answer_id[:200]}' is '{status}': {rest}"
    return HttpFault(400, "previous_response_not_completed", text, field)


def item_not_found(item_id: str) -> HttpFault:
    """Return the 404 for a body with an item id that no stored answer contains."""
    text = (
        f"Item with id '{item_id[:200]}' not found. Items are stored with their answers, but not "
        "if `store` is false: send the item itself, or remove it from your input"
    )
    return HttpFault(404, "item_not_found", text, "input")


def owner_silent(message: str, waited_s: float) -> HttpFault:
    """Return the 504 for a node or process that did not answer within `waited_s`."""
    return HttpFault(
        504,
        "owner_silent",
        message,
        retry_after_s=OVERLOADED_RETRY_S,
        facts={"waited_s": waited_s},
    )


def records_elsewhere(is_down: bool, message: str) -> HttpFault:
    """Return the 503 for a node that is down, or that refuses without an HTTP error."""
    code = "owner_down" if is_down else "records_unavailable"
    return HttpFault(503, code, message, retry_after_s=UNAVAILABLE_RETRY_S)


def method_not_allowed(method: str, allowed: Sequence[str]) -> HttpFault:
    """Return the 405 for an existing path that does not support the request's method."""
    names = ", ".join(sorted(allowed))
    return HttpFault(
        405,
        "method_not_allowed",
        f"method {method} is not allowed; use {names}",
        headers=(("allow", names),),
    )


def unauthorized(message: str) -> HttpFault:
    """Return the 401 for a missing or unknown API key."""
    return HttpFault(401, "invalid_api_key", message, headers=(("www-authenticate", "Bearer"),))


def forbidden(message: str) -> HttpFault:
    """Return the 403 for one of the cluster's API keys that may not do what the request asks
    for."""
    return HttpFault(403, "forbidden", message)


def insufficient_scope(scope: str, needed: str, what: str) -> HttpFault:
    """Return the 403 for an API key whose scope is too small."""
    return HttpFault(
        403,
        "insufficient_scope",
        f"{what} needs an API key with the scope '{needed}'; this key has '{scope}'",
        facts={"scope": scope, "needed_scope": needed},
    )


def over_budget(code: str, message: str, limit: int, retry_after_s: float) -> HttpFault:
    """Return the 429 for an API key that used up the budget named by `code`."""
    return HttpFault(429, code, message, retry_after_s=retry_after_s, facts={"limit": limit})


def key_not_found(word: str) -> HttpFault:
    """Return the 404 for an unknown API key."""
    return HttpFault(404, "key_not_found", f"no API key {word[:80]!r}", field="key")


def too_large(limit_bytes: int) -> HttpFault:
    """Return the 413 for a body beyond the limit. The rest of the body was not read."""
    return HttpFault(
        413,
        "body_too_large",
        f"the request body is too large; the limit is {limit_bytes} bytes",
        facts={"limit_bytes": limit_bytes},
    )


def no_websocket(path: str) -> HttpFault:
    """Return the 404 for a WebSocket request. No path supports WebSockets."""
    text = f"{path} has no WebSocket; use HTTP with a stream"
    return HttpFault(404, "not_there_yet", text)


def packed_body(encoding: str) -> HttpFault:
    """Return the 415 for a compressed body, whose real size would be known too late."""
    return HttpFault(
        415,
        "unsupported_encoding",
        f"Content-Encoding '{encoding[:40]}' is not supported; send the body uncompressed",
        headers=(("accept-encoding", "identity"),),
    )


def internal(reference: str) -> HttpFault:
    """Return the 500 for a failure of shoal itself. The text only names a reference that can be
    found in the log."""
    return HttpFault(500, "internal_error", f"internal error; see reference {reference} in the log")


def records_unavailable(why: str) -> HttpFault:
    """Return the 503 for node records that cannot be read."""
    text = f"cannot read the node's records: {why}"
    return HttpFault(503, "records_unavailable", text, retry_after_s=UNAVAILABLE_RETRY_S)


def in_words(field: str | None, words: Mapping[str, str]) -> str | None:
    """Return the name of a field in the client's terms. Runners name fields in OpenAI's terms,
    in the same words for every API. `words` maps the first step of a path, or a list and its member
    (`tools[].parameters`), to the client's name."""
    if field is None:
        return None
    listed = _OF_LIST.match(field)
    if listed is not None and (word := words.get(f"{listed[1]}[].{listed[3]}")) is not None:
        return word.replace("[]", f"[{listed[2]}]") + field[listed.end() :]
    step = re.split(r"[.\[]", field, maxsplit=1)[0]
    return words.get(step, step) + field[len(step) :]


def overflow_of(fault: HttpFault) -> tuple[int, int] | None:
    """Return (prompt tokens, limit) of a prompt that is too long; None for every other failure.
    Each dialect puts these numbers into the wording that its clients search for."""
    prompt = fault.facts.get("prompt_tokens")
    limit = fault.facts.get("limit_tokens", fault.facts.get("limit"))
    if fault.code != "context_length_exceeded":
        return None
    if isinstance(prompt, int) and isinstance(limit, int) and prompt > limit:
        return prompt, limit
    return None


def _by_row(
    row: _Row, message: str, field: str | None, retry_after_s: float | None, facts: dict[str, Any]
) -> HttpFault:
    """Return a fault from a row of the table. If a retry time is given, it replaces the row's retry
    time."""
    again_s = row.retry_after_s if retry_after_s is None else retry_after_s
    return HttpFault(row.status, row.code, message, field, again_s, facts)
