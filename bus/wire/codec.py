"""Encodes envelopes as bytes and decodes them: msgpack, limited in size, validated against fixed
types.

Pure. No other module uses msgpack. An envelope (control and telemetry) is an array [version, kind,
node, process, boot, seq, body map]; pydantic validates its body. Any other input raises
`BadMessage`, whose text names the fault. Nothing is unpickled. The first messages between nodes
keep one version for ever; if a later build has added fields to them, this build ignores these
fields. Messages per token and step are encoded by `bus.wire.array_frames` instead.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# (msgpack carries no type information)
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgpack
from pydantic import ValidationError

from bus.wire import accelerators, pool
from bus.wire.errors import BadMessage, first_problem
from bus.wire.ids import Boot, NodeId
from bus.wire.kv import moves as kv_moves
from bus.wire.messages import (
    collectives,
    commands,
    control,
    events,
    gateways,
    peers,
    readings,
    weights,
)
from bus.wire.messages.peers import FIRST_WORDS, FIRST_WORDS_PROTOCOL
from bus.wire.messages.wire import PROTOCOL_MAX, PROTOCOL_MIN, Message

_Body = TypeVar("_Body", bound=Message)
MAX_CONTROL_BYTES = 64 << 20
MAX_QUESTION_BYTES = 1 << 20
"""Maximum bytes of a message at a socket that receives only questions. It is small, because one
byte of msgpack may take 72 bytes in memory."""
MAX_ITEMS = 1 << 16
"""Maximum elements of an array or map in a message."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """The sender in every envelope: node, process and boot."""

    node: NodeId
    process: str
    boot: Boot


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message and its sender. `seq` grows by one with each message of a boot."""

    node: NodeId
    process: str
    boot: Boot
    seq: int
    message: Message


def _kinds() -> dict[str, type[Message]]:
    kinds: dict[str, type[Message]] = {}
    modules = (
        accelerators,
        collectives,
        commands,
        control,
        events,
        gateways,
        kv_moves,
        peers,
        pool,
        readings,
        weights,
    )
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Message):
                kind = value.model_fields.get("kind")
                if kind is not None and isinstance(kind.default, str):
                    kinds[kind.default] = value
    return kinds


KINDS: dict[str, type[Message]] = _kinds()
"""The kinds of message that may travel in an envelope."""


def pack(value: Any) -> bytes:
    """Pack plain data as msgpack: maps, arrays, text, bytes, numbers, booleans, null."""
    return cast(bytes, msgpack.packb(value, use_bin_type=True))


def unpack(data: bytes, *, limit_bytes: int = MAX_CONTROL_BYTES, most_items: int = -1) -> Any:
    """Unpack plain data from msgpack. `most_items` limits each array and map (-1: no limit). Raises
    BadMessage."""
    if len(data) > limit_bytes:
        raise BadMessage(f"the message has {len(data)} bytes; the limit is {limit_bytes}")
    try:
        return cast(
            Any,
            msgpack.unpackb(
                data,
                raw=False,
                strict_map_key=False,
                max_array_len=most_items,
                max_map_len=most_items,
                max_ext_len=0,
            ),
        )
    except Exception as error:  # msgpack raises many types on garbage
        raise BadMessage(f"not msgpack: {error}") from error


def encode(envelope: Envelope) -> bytes:
    """Return an envelope as one frame."""
    body = envelope.message.model_dump()
    kind = body.pop("kind")  # only tagged messages travel
    version = FIRST_WORDS_PROTOCOL if kind in FIRST_WORDS else PROTOCOL_MAX
    return pack([version, kind, envelope.node, envelope.process, envelope.boot, envelope.seq, body])


def decode(data: bytes, *, limit_bytes: int = MAX_CONTROL_BYTES) -> Envelope:
    """Read one frame as an envelope with a validated message. Raises BadMessage."""
    raw = unpack(data, limit_bytes=limit_bytes, most_items=MAX_ITEMS)
    if not isinstance(raw, list) or len(cast(list[Any], raw)) != 7:
        raise BadMessage("an envelope must be an array of 7 elements")
    version, kind, node, process, boot, seq, body = cast(list[Any], raw)
    least, most = PROTOCOL_MIN, PROTOCOL_MAX
    if isinstance(kind, str) and kind in FIRST_WORDS:
        least = most = FIRST_WORDS_PROTOCOL
    if not isinstance(version, int) or not least <= version <= most:
        raise BadMessage(
            f"protocol {version!r} is not supported; this version reads {least} to {most}"
        )
    if not (isinstance(node, str) and isinstance(process, str) and isinstance(boot, str)):
        raise BadMessage("node, process and boot of an envelope must be text")
    if not isinstance(seq, int) or not isinstance(body, dict):
        raise BadMessage("an envelope's seq must be a number and its body a map")
    return Envelope(NodeId(node), process, Boot(boot), seq, decode_body(kind, cast(Any, body)))


def pack_body(message: Message) -> bytes:
    """Return a message without its envelope, as the map of its fields."""
    return pack(message.model_dump())


def unpack_body(cls: type[_Body], data: bytes, *, limit_bytes: int) -> _Body:
    """Read a message of the type `cls` from the map of its fields. Raises BadMessage."""
    body = unpack(data, limit_bytes=limit_bytes, most_items=MAX_ITEMS)
    try:
        return cls.model_validate(body)
    except ValidationError as error:
        raise BadMessage(f"{cls.__name__}: {first_problem(error)}") from error


def decode_body(kind: object, body: object) -> Message:
    """Parse the body map of a message of `kind`. Raises BadMessage, which names an unknown kind or
    field."""
    message = KINDS.get(kind) if isinstance(kind, str) else None
    if message is None or not isinstance(kind, str):
        raise BadMessage(f"unknown kind {kind!r}")
    if kind in FIRST_WORDS and isinstance(body, dict):
        fields = message.model_fields
        body = {key: value for key, value in cast(Any, body).items() if key in fields}
    try:
        return message.model_validate(body)
    except ValidationError as error:
        raise BadMessage(f"{kind}: {first_problem(error)}") from error
