"""Decides which instance of a model gets a request, and which model and adapter a name means.

Pure. A name means a model if it is the model's exact id. Otherwise it means the only model whose id
matches it, if case, `:latest` and the owner (the part of the id before `/`) are ignored. An adapter
is named after its model: `MODEL:ADAPTER`.

Candidates are the ready instances that have a free place and have not been tried for this request.
A hash of the start of the conversation ranks the candidates. The first one gets the request,
because its prefix cache is warm, unless it has markedly more work than the second. So each
conversation is in at most two prefix caches. Gateways with equal readings do not all choose the
same instance, because their conversations differ. (Rendezvous hashing, Thaler and Ravishankar; the
power of two choices, Mitzenmacher.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from bus.wire.cards import model_named
from bus.wire.ids import InstanceId, ModelId
from bus.wire.instances import Instance
from bus.wire.messages.derived import plain_name
from bus.wire.messages.readings import RunnerReading
from bus.wire.messages.requests import (
    ChatPrompt,
    GenerationRequest,
    InputsPrompt,
    TextPrompt,
)

AFFINITY_SLACK = 4
"""The instance with the warm prefix cache is chosen even if it has up to this many more requests
than the other one."""
AFFINITY_CHARS = 4096


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """The work of one instance, as far as this gateway knows. `rows` counts running and waiting
    requests. `suspect`: the instance is late with a reply. `full`: it cannot take another
    request."""

    rows: int
    suspect: bool = False
    full: bool = False


def adapter_named(
    name: str, models: Collection[ModelId], adapters: Mapping[ModelId, Collection[str]]
) -> tuple[ModelId, str] | None:
    """Return the model and the adapter that a name `MODEL:ADAPTER` means. The adapter is returned
    even if the model does not have it. None if no model with adapters matches. Callers must first
    check whether the name means a model or a derived model."""
    base, _, adapter = plain_name(name).rpartition(":")
    model = model_named(base, models) if base else None
    if model is None or not adapters.get(model):
        return None
    own = adapters[model]
    alike = [own_name for own_name in own if own_name.casefold() == adapter.casefold()]
    return model, alike[0] if adapter not in own and len(alike) == 1 else adapter


def ready_instances(
    instances: Iterable[Instance],
    model: ModelId,
    excluded: Collection[tuple[InstanceId, int]] = (),
) -> list[Instance]:
    """Return the instances that accept requests now; instances that are being evicted do not.
    `excluded` has (instance, generation) pairs to leave out; a generation is one load attempt."""
    return [
        instance
        for instance in instances
        if instance.model == model
        and instance.accepts
        and (instance.instance, instance.generation) not in excluded
    ]


def given_up(instances: Iterable[Instance], model: ModelId) -> str | None:
    """Return the reason why the leader will not load the model now; None if the leader may still
    load it.

    A reason is returned if the leader gave up on all instances of the model and will not place any
    of them on other nodes or under other conditions. An instance that the leader will place again
    unchanged only waits for the end of a pause after crashes, or for its node.
    """
    mine = [instance for instance in instances if instance.model == model]
    if not mine or any(
        instance.status != "failed"
        or instance.elsewhere
        or instance.place_again not in (None, instance.conditions)
        for instance in mine
    ):
        return None
    return mine[0].why or "its runner keeps failing"


def choose(
    ready: Iterable[Instance], loads: Mapping[InstanceId, InstanceLoad], affinity: str
) -> Instance | None:
    """Return the instance that gets the request; None if `ready` is empty. A suspect instance is
    chosen only if all instances are suspect, and a full instance only if all are full."""
    candidates = [(instance, loads.get(instance.instance, InstanceLoad(0))) for instance in ready]
    if not candidates:
        return None
    candidates = [c for c in candidates if not c[1].suspect] or candidates
    candidates = [c for c in candidates if not c[1].full] or candidates
    candidates.sort(key=lambda c: _weight(affinity, c[0].instance), reverse=True)
    (warm, load), (other, its_load) = candidates[0], candidates[min(1, len(candidates) - 1)]
    return warm if load.rows <= its_load.rows + AFFINITY_SLACK else other


def affinity_of(request: GenerationRequest, key: str = "") -> str:
    """Return a hash that stays the same while a conversation grows: a hash of the model, the
    adapter, the tools and the messages up to the first user message. If the client gave its
    requests a common `key`, only the model, the adapter and the key are hashed."""
    prompt = request.prompt
    parts: list[str] = [request.model, *([request.adapter] if request.adapter else ())]
    if key:
        parts.append(f"said:{key}")
    elif isinstance(prompt, ChatPrompt):
        parts += [tool.name for tool in prompt.tools]
        for message in prompt.messages:
            text = "".join(part.text for part in message.parts if part.kind == "text")
            parts.append(f"{message.role}:{text[:AFFINITY_CHARS]}")
            if message.role == "user":
                break
    elif isinstance(prompt, TextPrompt):
        parts.append(prompt.text[: AFFINITY_CHARS // 16])
    elif isinstance(prompt, InputsPrompt):
        parts.append(request.request_id)  # inputs share no prefix
    else:
        parts.append(",".join(map(str, prompt.token_ids[: AFFINITY_CHARS // 16])))
    return hashlib.blake2b("\0".join(parts).encode(errors="replace"), digest_size=16).hexdigest()


def reading_rows(reading: RunnerReading | None) -> int:
    """Return the number of running and waiting requests of a runner, according to its reading."""
    return 0 if reading is None else reading.running + reading.waiting


def has_place(reading: RunnerReading | None, rows: int) -> bool:
    """Return whether a runner with `rows` requests accepts one more, given the limits in its
    reading. True without a reading."""
    return reading is None or rows < reading.max_running + reading.max_waiting


def _weight(affinity: str, instance: InstanceId) -> bytes:
    return hashlib.blake2b(f"{affinity}/{instance}".encode(), digest_size=8).digest()
