"""What a derived model adds to a request: all that it was made with and the request does not say.
What a model's own `card.toml` says to requests is added in the same way, after it.

Pure. The system prompt comes before a conversation that begins with none, the turns behind the
system prompt; a raw prompt gets neither, nor does one with a history, which has them. What the
client said itself stays (`model_fields_set` of its sampling: the others are defaults).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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


def requests_of(
    parsed: Parsed, model: ModelId, derived: DerivedModel | None, own: DerivedModel | None
) -> list[GenerationRequest]:
    """Return the requests of a body as ones for `model`, with what the name that it used adds, then
    what the model's `own` card does, and in the manner that the body asks for."""
    said, found = parsed.extras.says_priority, list[GenerationRequest]()
    for request in parsed.requests:
        one = completed(completed(request, model, derived), model, own)
        priority = priority_of(one, own, said=said)
        found.append(in_manner(one, parsed.manner).model_copy(update={"priority": priority}))
    return found


def completed(
    request: GenerationRequest, model: ModelId, derived: DerivedModel | None
) -> GenerationRequest:
    """Return the request as one for `model`, with what the name that it used adds to it."""
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
    """Raise HttpFaultRaised (400) for conversations with a model that has a Go template, by its
    name or by its card."""
    if not any(isinstance(one.prompt, ChatPrompt) for one in requests):
        return
    for said in (derived, own):
        if said is None or not said.template:
            continue
        what, remedy = f"'{said.name}' was made with TEMPLATE", "make it again without TEMPLATE"
        if said is own:
            what = f"the card of '{said.name}' has a `template`"
            remedy = f"`shoal card edit {said.name}` and delete it"
        text = f"{what}, and shoal runs no Go templates; {remedy}, to use the model's own template"
        raise HttpFaultRaised(of_bad_request(BadRequest(text, field="model")))


def priority_of(request: GenerationRequest, own: DerivedModel | None, *, said: bool) -> int:
    """Return a request's priority: that of its model's card where the client has not `said` one,
    neither as such nor by a tier."""
    if said or own is None or own.priority is None or request.priority != PRIORITIES["normal"]:
        return request.priority
    return own.priority


def in_manner(request: GenerationRequest, manner: str) -> GenerationRequest:
    """Return the request with a sentence at the end of its system prompt, which is that of a
    derived model where the conversation has none; none where `manner` is empty."""
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


def _sampling(asked: Sampling, derived: DerivedModel) -> Sampling:
    unsaid = set(derived.sampled) & set(Sampling.model_fields) - asked.model_fields_set
    return asked.model_copy(update={name: getattr(derived.sampling, name) for name in unsaid})


def _conversation(prompt: ChatPrompt, derived: DerivedModel) -> ChatPrompt:
    asked = prompt.messages
    first = next((n for n, one in enumerate(asked) if one.role != "system"), len(asked))
    system, rest = asked[:first], asked[first:]
    if not system and derived.system:
        system = (_turn("system", derived.system),)
    turns = tuple(_turn(one.role, one.content) for one in derived.turns)
    return prompt.model_copy(update={"messages": (*system, *turns, *rest)})


def _turn(role: Any, text: str) -> ChatMessage:
    return ChatMessage(role=role, parts=(TextPart(text=text),))
