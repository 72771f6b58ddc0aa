"""Packs the messages of the data plane as bytes and reads them, for runners and for gateway
processes.

Pure. The types of `bus.wire.messages.tokens` are array frames (`bus.wire.array_frames`). Requests,
usage and refusals in them are pydantic models and validated in full. Any other input raises
`BadMessage`, and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from bus.wire.array_frames import astuple, packer, reader
from bus.wire.errors import first_problem
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import (
    Accepted,
    Entry,
    Finished,
    StepEntries,
    Submit,
    ToGateway,
    TokenDelta,
    ToolCallDelta,
    ToRunner,
    Traced,
)
from bus.wire.proposals import FromProposer, FromVerifier, ToProposer, ToVerifier

UNSET = tuple(
    name for name, field in GenerationRequest.model_fields.items() if field.default is None
)
"""Request fields that may be None. A field that is None is not sent, so that earlier builds, which
lack some of the fields, can read the request."""
LATER_IN_OUTPUT = {"rule", "choices", "field"}
"""Fields of a request's `output` that the first version lacked. They are left out if all of them
have their defaults."""


def pack_to_gateway(message: ToGateway | FromProposer) -> bytes:
    """Pack one frame for a gateway process or a verifier."""
    if type(message) is StepEntries:
        return _pack(("step", message.step, [_row(entry) for entry in message.entries]))
    if type(message) is Accepted and not message.resumes:
        fields = ("accepted", message.request_id, message.position, message.prompt_tokens)
        return _pack((*fields, message.unheeded) if message.unheeded else fields)
    if type(message) is Traced and not message.ranks:
        return _pack(("traced", *astuple(message)[:-1]))
    return _pack(message)


def _row(entry: Entry) -> Entry | tuple[object, ...]:
    """Return the entry as it is sent: its fields as an array, without empty last fields
    (`logprobs`, `ids` and `later` of a delta, `prompt` of an end)."""
    if type(entry) is not TokenDelta:
        if type(entry) is Finished and entry.prompt is None:
            return ("f", entry.request_id, entry.seq, entry.usage)
        if type(entry) is ToolCallDelta and not entry.later:
            fields = astuple(entry)
            return ("c", *(fields[:-1] if entry.ids else fields[:-2]))
        return entry
    if entry.later:
        return entry
    first = (
        "t",
        entry.request_id,
        entry.seq,
        entry.choice,
        entry.channel,
        entry.text,
        entry.tokens,
    )
    if entry.ids:
        return (*first, entry.logprobs, entry.ids)
    return (*first, entry.logprobs) if entry.logprobs else first


def pack_ids(ids: Sequence[int]) -> bytes:
    """Return token ids as bytes: four for each, little-endian."""
    if len(ids) == 1:  # the hot path
        return ids[0].to_bytes(4, "little")
    return struct.pack(f"<{len(ids)}I", *ids)


def unpack_ids(packed: bytes | bytearray) -> tuple[int, ...]:
    """Return the token ids of `pack_ids`. Raises ValueError if the length is no multiple of 4."""
    if len(packed) % 4:
        raise ValueError(f"{len(packed)} bytes are not token ids of 4 bytes each")
    return struct.unpack(f"<{len(packed) // 4}I", packed)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        if isinstance(value, GenerationRequest):
            return value.model_dump(exclude=_unsaid(value))
        return value.model_dump(exclude_defaults=True)
    raise TypeError(f"{type(value).__name__} cannot be sent in a frame")


def _unsaid(request: GenerationRequest) -> dict[str, Any]:
    """Return which fields of a request to leave out of its frame, in the form of pydantic's
    `exclude`."""
    unsaid: dict[str, Any] = {name: True for name in UNSET if getattr(request, name) is None}
    if not request.output.is_later:
        unsaid["output"] = LATER_IN_OUTPUT
    return unsaid


def _validated(model: type[BaseModel], data: object) -> BaseModel:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"{model.__name__}: {first_problem(error)}") from error


_pack = packer(_plain)


def pack_to_runner(message: ToRunner | FromVerifier) -> bytes:
    """Pack one frame for a runner. Empty fields at the end that earlier versions don't know are
    left out."""
    if type(message) is Submit and not message.resumes:
        if message.so_far is not None:
            return _pack(("submit", *astuple(message)[:-3]))
        waited = (message.waited_ms,) if message.waited_ms else ()
        who = (message.sharer,) if message.sharer or waited else ()
        return _pack(
            (
                "submit",
                message.request,
                message.generation,
                message.credit,
                message.remaining_ms,
                *who,
                *waited,
            )
        )
    return _pack(message)


unpack_to_runner: Callable[[bytes], ToRunner | ToProposer] = reader(
    ToRunner | ToProposer, "a runner", _validated
)
"""Reads a frame that a gateway process or a verifier sent to a runner. Raises BadMessage."""
unpack_to_verifier: Callable[[bytes], ToVerifier] = reader(ToVerifier, "a verifier", _validated)
"""Reads a frame that a proposer sent to a verifier. Raises BadMessage."""
unpack_to_gateway: Callable[[bytes], ToGateway] = reader(ToGateway, "a gateway", _validated)
"""Reads a frame that a runner sent to a gateway process. Raises BadMessage."""
