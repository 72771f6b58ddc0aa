"""Envelopes as bytes and back: msgpack, size-capped, validated against closed types.

Pure, and the only home of msgpack. An envelope (control and telemetry) is an array [version, kind,
node, process, boot, seq, body map], its body validated by pydantic. Anything else raises
`BadMessage` with a text that names what was wrong. Nothing is unpickled. The first words between
nodes have one version for ever, and of them fields that a later build added are passed over. (What
is said for each token and step travels as `bus.wire.array_frames`.)
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# (msgpack carries no type information)
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgpack
from pydantic import TypeAdapter, ValidationError

from bus.wire import accelerators, pool
from bus.wire.errors import BadMessage, first_problem
from bus.wire.ids import Boot, NodeId
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

MAX_CONTROL_BYTES = 64 << 20
"""Snapshots are the largest; anything else is far below."""
MAX_QUESTION_BYTES = 1 << 20
"""The longest where only questions come. A byte of msgpack may become 72 of memory."""
MAX_ITEMS = 1 << 16
"""The longest array or map of a message."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message and who sent it. `seq` grows by one for each message of a boot."""

    node: NodeId
    process: str
    boot: Boot
    seq: int
    message: Message


def _kinds() -> dict[str, type[Message]]:
    found: dict[str, type[Message]] = {}
    modules = (
        accelerators,
        collectives,
        commands,
        control,
        events,
        gateways,
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
                    found[kind.default] = value
    return found


KINDS: dict[str, type[Message]] = _kinds()
"""Every kind that may travel in an envelope."""
_ADAPTERS = {kind: TypeAdapter(cls) for kind, cls in KINDS.items()}


def pack(value: Any) -> bytes:
    """Return the msgpack of plain data: maps, arrays, text, bytes, numbers, booleans, null."""
    return cast(bytes, msgpack.packb(value, use_bin_type=True))


def unpack(data: bytes, *, limit_bytes: int = MAX_CONTROL_BYTES, most_items: int = -1) -> Any:
    """Read plain data from msgpack, with `most_items` in an array or map (-1: as many as there
    are). Raises BadMessage."""
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


def decode_body(kind: object, body: object) -> Message:
    """Read a message of `kind` from its map. Raises BadMessage, naming an unknown kind or field."""
    adapter = _ADAPTERS.get(kind) if isinstance(kind, str) else None
    if adapter is None or not isinstance(kind, str):
        raise BadMessage(f"unknown kind {kind!r}")
    if kind in FIRST_WORDS and isinstance(body, dict):
        known = KINDS[kind].model_fields
        body = {key: value for key, value in cast(Any, body).items() if key in known}
    try:
        return adapter.validate_python(body)
    except ValidationError as error:
        raise BadMessage(f"{kind}: {first_problem(error)}") from error
