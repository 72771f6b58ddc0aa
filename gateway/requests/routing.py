"""Which model a name means, and which of its instances answers a request.

Pure. Names: the exact id, else the only id whose last part (after `/`) or whose name before
`:latest` it is; an adapter's stands behind that of its model. Instances: of those ready and not
excluded that have a place, the two that the conversation's beginning hashes to; of them the first
(its prefix cache is warm), unless it has markedly more work than the second. So a conversation is
in two prefix caches at most, and gateways that have heard the same do not all ask the same copy.
(Rendezvous hashing, Thaler and Ravishankar; the power of two choices, Mitzenmacher.)
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
"""Rows that a warm prefix is worth: beyond it the other of two instances wins."""
AFFINITY_CHARS = 4096


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """Work at one instance, as far as is known here; `full`: it has no place for one more."""

    rows: int
    suspect: bool = False
    full: bool = False


def adapter_named(
    name: str, known: Collection[ModelId], adapters: Mapping[ModelId, Collection[str]]
) -> tuple[ModelId, str] | None:
    """Return the model and the adapter of it that `name` means, `MODEL:ADAPTER`; the adapter may be
    none of it. None where no model with adapters is meant. Other names go before it."""
    base, _, wanted = plain_name(name).rpartition(":")
    model = model_named(base, known) if base else None
    if model is None or not adapters.get(model):
        return None
    own = adapters[model]
    alike = [one for one in own if one.casefold() == wanted.casefold()]
    return model, alike[0] if wanted not in own and len(alike) == 1 else wanted


def ready_instances(
    instances: Iterable[Instance],
    model: ModelId,
    excluded: Collection[tuple[InstanceId, int]] = (),
) -> list[Instance]:
    """Return instances that may take a request now, none that makes way; `excluded` are (instance,
    generation) pairs."""
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
    """Return why the model will not be loaded now: the holder gave up on all its copies, and places
    none of them elsewhere or under other conditions; or None. One that is to come back as it was is
    waiting: for the end of a pause, because its runner kept failing, or for its node."""
    mine = [instance for instance in instances if instance.model == model]
    if not mine or any(
        one.status != "failed" or one.elsewhere or one.place_again not in (None, one.conditions)
        for one in mine
    ):
        return None
    return mine[0].why or "its runner keeps failing"


def choose(
    ready: Iterable[Instance], loads: Mapping[InstanceId, InstanceLoad], affinity: str
) -> Instance | None:
    """Return the instance to ask, or None. A suspect one is asked only where there is no other, a
    full one only where all others are."""
    candidates = [(one, loads.get(one.instance, InstanceLoad(0))) for one in ready]
    if not candidates:
        return None
    candidates = [c for c in candidates if not c[1].suspect] or candidates
    candidates = [c for c in candidates if not c[1].full] or candidates
    candidates.sort(key=lambda c: _weight(affinity, c[0].instance), reverse=True)
    (warm, load), (other, its_load) = candidates[0], candidates[min(1, len(candidates) - 1)]
    return warm if load.rows <= its_load.rows + AFFINITY_SLACK else other


def affinity_of(request: GenerationRequest, said: str = "") -> str:
    """Return a hash of what a growing conversation keeps: its model, tools, and first words; of the
    model and what the client said that its requests share, where it said so."""
    prompt = request.prompt
    parts: list[str] = [request.model, *([request.adapter] if request.adapter else ())]
    if said:
        parts.append(f"said:{said}")
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
        parts.append(request.request_id)  # nothing is kept of inputs
    else:
        parts.append(",".join(map(str, prompt.token_ids[: AFFINITY_CHARS // 16])))
    return hashlib.blake2b("\0".join(parts).encode(errors="replace"), digest_size=16).hexdigest()


def reading_rows(reading: RunnerReading | None) -> int:
    """Return the rows that a runner said it has, waiting ones included."""
    return 0 if reading is None else reading.running + reading.waiting


def has_place(reading: RunnerReading | None, rows: int) -> bool:
    """Return whether a runner with so many rows takes one more, as far as its reading tells; one
    that was not heard of is asked."""
    return reading is None or rows < reading.max_running + reading.max_waiting


def _weight(affinity: str, instance: InstanceId) -> bytes:
    return hashlib.blake2b(f"{affinity}/{instance}".encode(), digest_size=8).digest()
