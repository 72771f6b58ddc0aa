"""Which model a name means, and which of its instances gets a request.

Pure. A name is a model's exact id, or matches the only id with that last part (after `/`) or with
that name before `:latest`. An adapter's name follows its model's.

A request goes to a ready instance with a place that was not tried yet. The start of the
conversation hashes to two such instances. The first gets the request, because its prefix cache is
warm, unless it has markedly more work than the second. So a conversation is in at most two prefix
caches, and gateways with equal readings do not all choose the same instance. (Rendezvous hashing,
Thaler and Ravishankar; the power of two choices, Mitzenmacher.)
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
"""Rows that a warm prefix is worth: the warm instance wins unless it has more than this many rows
more."""
AFFINITY_CHARS = 4096


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """Work at one instance, as far as this gateway knows; `full`: it has no place for another
    request."""

    rows: int
    suspect: bool = False
    full: bool = False


def adapter_named(
    name: str, models: Collection[ModelId], adapters: Mapping[ModelId, Collection[str]]
) -> tuple[ModelId, str] | None:
    """Return the model and the adapter that a name `MODEL:ADAPTER` means; the model may lack that
    adapter. None if no model with adapters matches. Callers try models and derived models first."""
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
    """Return the instances that may take a request now, without those being evicted. `excluded` are
    (instance, generation) pairs."""
    return [
        instance
        for instance in instances
        if instance.model == model
        and instance.status == "ready"
        and instance.serves
        and not instance.yields_to
        and instance.lead is not None
        and (instance.instance, instance.generation) not in excluded
    ]


def given_up(instances: Iterable[Instance], model: ModelId) -> str | None:
    """Return why the model will not be loaded now, or None.

    The leader gave up on all its instances and will place none of them elsewhere or under other
    conditions. An instance that will be placed again unchanged is only waiting: for the end of a
    pause after crashes, or for its node.
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
    """Return the instance to ask, or None. A suspect instance is chosen only if all are suspect, a
    full instance only if all others are full."""
    candidates = [(instance, loads.get(instance.instance, InstanceLoad(0))) for instance in ready]
    if not candidates:
        return None
    candidates = [c for c in candidates if not c[1].suspect] or candidates
    candidates = [c for c in candidates if not c[1].full] or candidates
    candidates.sort(key=lambda c: _weight(affinity, c[0].instance), reverse=True)
    (warm, load), (other, its_load) = candidates[0], candidates[min(1, len(candidates) - 1)]
    return warm if load.rows <= its_load.rows + AFFINITY_SLACK else other


def affinity_of(request: GenerationRequest, key: str = "") -> str:
    """Return a hash of the parts that a growing conversation keeps: its model, tools and first
    words. If the client gave its requests a common `key`, only the model, the adapter and the key
    are hashed."""
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
    """Return the rows of a runner by its reading, waiting ones included."""
    return 0 if reading is None else reading.running + reading.waiting


def has_place(reading: RunnerReading | None, rows: int) -> bool:
    """Return whether a runner with so many rows takes one more, by its reading; True without a
    reading."""
    return reading is None or rows < reading.max_running + reading.max_waiting


def _weight(affinity: str, instance: InstanceId) -> bytes:
    return hashlib.blake2b(f"{affinity}/{instance}".encode(), digest_size=8).digest()
