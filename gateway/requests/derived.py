"""Adds default values to a request: first those of the derived model that it names, then those of
the model's own `card.toml`.

Pure. If a conversation has no system prompt, it gets the derived model's system prompt. The derived
model's example turns follow the system prompt. Raw prompts get neither. A request that continues a
stored conversation (`history`) gets neither, because the stored conversation already has them.
Values that the client set are kept; `model_fields_set` of the sampling tells which values these
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bus.wire.errors import BadRequest
from bus.wire.ids import ModelId
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    Sampling,
    TextPart,
)
from bus.wire.shares import PRIORITIES
from gateway.dialects.dialect import Parsed
from gateway.dialects.faults import HttpFaultRaised, of_bad_request

if TYPE_CHECKING:
    from gateway.requests.catalog import ModelCatalog


def requests_of(
    parsed: Parsed, model: ModelId, derived: DerivedModel | None, own: DerivedModel | None
) -> list[GenerationRequest]:
    """Return the requests of a body for `model`. The derived model's defaults are added first, then
    those of the model's card (`own`). Finally `manner` (a sentence about the answer's length) is
    added to the system prompt."""
    is_set, requests = parsed.extras.says_priority, list[GenerationRequest]()
    for request in parsed.requests:
        complete = completed(completed(request, model, derived), model, own)
        priority = priority_of(complete, own, is_set=is_set)
        with_manner = in_manner(complete, parsed.manner)
        requests.append(with_manner.model_copy(update={"priority": priority}))
    return requests


def completed(
    request: GenerationRequest, model: ModelId, derived: DerivedModel | None
) -> GenerationRequest:
    """Return a copy of the request for `model`, with the defaults of `derived` added."""
    if derived is None or request.prompt.kind == "inputs":
        return request.model_copy(update={"model": model})
    added: dict[str, Any] = {
        "model": model,
        "sampling": _sampling(request.sampling, derived),
        "stop": request.stop or derived.stop,
    }
    if request.max_tokens is None:
        added["max_tokens"] = derived.max_tokens
    if isinstance(request.prompt, ChatPrompt) and request.thinking is None and not request.effort:
        added["thinking"] = derived.thinking
    if isinstance(request.prompt, ChatPrompt) and not request.history:
        added["prompt"] = _conversation(request.prompt, derived)
    return request.model_copy(update=added)


def check_templates(
    requests: Iterable[GenerationRequest], derived: DerivedModel | None, own: DerivedModel | None
) -> None:
    """Raise HttpFaultRaised (400) if a request is a conversation and the derived model or the
    model's card has a Go template, which shoal cannot run."""
    if not any(isinstance(request.prompt, ChatPrompt) for request in requests):
        return
    for source in (derived, own):
        if source is None or not source.template:
            continue
        what, remedy = f"'{source.name}' was made with TEMPLATE", "make it again without TEMPLATE"
        if source is own:
            what = f"the card of '{source.name}' has a `template`"
            remedy = f"`shoal card edit {source.name}` and delete it"
        text = f"{what}, and shoal runs no Go templates; {remedy}, to use the model's own template"
        raise HttpFaultRaised(of_bad_request(BadRequest(text, field="model")))


def priority_of(request: GenerationRequest, own: DerivedModel | None, *, is_set: bool) -> int:
    """Return a request's priority. The priority of the model card applies unless the client set one
    (`is_set`), either as a priority or by a service tier."""
    if is_set or own is None or own.priority is None or request.priority != PRIORITIES["normal"]:
        return request.priority
    return own.priority


def in_manner(request: GenerationRequest, manner: str) -> GenerationRequest:
    """Return the request with `manner` appended to the system prompt of its conversation. An empty
    `manner` changes nothing."""
    prompt = request.prompt
    if not manner or not isinstance(prompt, ChatPrompt):
        return request
    first, *rest = prompt.messages or (None,)
    if first is None or first.role != "system":
        made = (_turn("system", manner), *prompt.messages)
    else:
        text = "".join(part.text for part in first.parts if isinstance(part, TextPart))
        parts = (TextPart(text=f"{text}\n\n{manner}"),)
        made = (first.model_copy(update={"parts": parts}), *rest)
    return request.model_copy(update={"prompt": prompt.model_copy(update={"messages": made})})


def _sampling(sampling: Sampling, derived: DerivedModel) -> Sampling:
    unsaid = set(derived.sampled) & set(Sampling.model_fields) - sampling.model_fields_set
    return sampling.model_copy(update={name: getattr(derived.sampling, name) for name in unsaid})


def _conversation(prompt: ChatPrompt, derived: DerivedModel) -> ChatPrompt:
    messages = prompt.messages
    first = next(
        (n for n, message in enumerate(messages) if message.role != "system"), len(messages)
    )
    system, rest = messages[:first], messages[first:]
    if not system and derived.system:
        system = (_turn("system", derived.system),)
    turns = tuple(_turn(turn.role, turn.content) for turn in derived.turns)
    return prompt.model_copy(update={"messages": (*system, *turns, *rest)})


def _turn(role: Any, text: str) -> ChatMessage:
    return ChatMessage(role=role, parts=(TextPart(text=text),))


def meaning_of(
    catalog: ModelCatalog, parsed: Parsed
) -> tuple[ModelId, str | None, Sequence[GenerationRequest]]:
    """Return the model that a body's name means, its adapter, and the requests with the values
    of the derived model and of the card. Raises HttpFaultRaised."""
    model = catalog.named(parsed.model, or_pulled=True)
    catalog.check_makes(model, parsed.requests)
    card, derived = catalog.cards().get(model), catalog.derived(parsed.model)
    own = None if card is None else card.defaults
    check_templates(parsed.requests, derived, own)
    adapters = catalog.adapters
    adapter = adapters.find(parsed.model, catalog.names(), derived)
    if adapter is None and own is not None and own.adapter in adapters.beside(model):
        adapter = own.adapter
    return model, adapter, requests_of(parsed, model, derived, own)
