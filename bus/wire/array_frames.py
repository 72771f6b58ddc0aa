"""Array frames: messages that are sent as `[tag, *fields]` in msgpack, because they are too
frequent for pydantic.

Pure. No other module uses msgspec. A frame is declared once, as an `ArrayFrame` with typed fields
and the tag of its array: `class Ping(ArrayFrame, tag="ping", frozen=True)`. A frame without a tag
is a row inside another frame. `packer` and `reader` serve `bus.wire.data_frames` and the ranks of a
group. Fields are sent in the order of their declaration. A frame with too many or too few fields,
or with a field of another type, is refused. A default marks a last field that senders may omit; the
packer always sends it. A function of the caller (`to_plain`, `from_plain`) converts values of other
libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from bus.wire.errors import BadMessage

MAX_FRAME_BYTES = 64 << 20

Positive = Annotated[int, msgspec.Meta(gt=0)]
"""A whole number above 0."""
Count = Annotated[int, msgspec.Meta(ge=0)]
"""A whole number from 0 on."""


class ArrayFrame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A frozen value that is sent as an array: its tag, if it has one, then its fields."""


def astuple(frame: ArrayFrame) -> tuple[Any, ...]:
    """Return the fields of a frame in order, without its tag."""
    return msgspec.structs.astuple(frame)


def packer(to_plain: Callable[[Any], Any] | None = None) -> Callable[[Any], bytes]:
    """Return a function that serialises an `ArrayFrame` to bytes. `to_plain` converts a value
    inside it that msgspec cannot serialise to plain types."""
    return msgspec.msgpack.Encoder(enc_hook=to_plain).encode


def reader(
    frames: Any, whom: str, from_plain: Callable[[type[Any], Any], Any] | None = None
) -> Callable[[bytes], Any]:
    """Return a function that parses bytes as one of `frames`, a type or a union of types. `whom`
    names the receiver in errors ("a runner").

    `from_plain(type, data)` converts plain data to a type that is no `ArrayFrame`; if it raises
    ValueError, the bytes are refused. The returned function raises BadMessage for any other input,
    and no other exception.
    """
    decode = msgspec.msgpack.Decoder(frames, dec_hook=from_plain).decode

    def read(data: bytes) -> Any:
        if len(data) > MAX_FRAME_BYTES:
            raise BadMessage(f"a frame has {len(data)} bytes; the limit is {MAX_FRAME_BYTES}")
        try:
            return decode(data)
        except Exception as error:  # msgspec's own, UnicodeDecodeError, RecursionError
            raise BadMessage(f"not a frame for {whom}: {error}") from error

    return read
