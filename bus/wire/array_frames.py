"""Array frames: `[tag, *fields]` in msgpack, for what is too frequent to be a validated model.

Pure, and the only home of msgspec. A frame is declared once, as an `ArrayFrame`: typed fields and
the tag of its array: `class Ping(ArrayFrame, tag="ping", frozen=True)`; one without a tag is a row
inside of another frame. `packer` and `reader` do the rest, for `bus.wire.data_frames` and for the
ranks of a group: fields travel in the order of their declaration, and what has a field too many,
too few or of another type is refused. A default is for a last field that senders may leave out;
the packer always sends it. Values of other libraries pass through a hook on either side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from bus.wire.errors import BadMessage

MAX_FRAME_BYTES = 64 << 20

Positive = Annotated[int, msgspec.Meta(gt=0)]
"""A whole number above 0."""


class ArrayFrame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A frozen value that travels as an array of its fields, behind its tag where it has one."""


def astuple(frame: ArrayFrame) -> tuple[Any, ...]:
    """Return the fields of a frame in their order, without its tag."""
    return msgspec.structs.astuple(frame)


def packer(to_plain: Callable[[Any], Any] | None = None) -> Callable[[Any], bytes]:
    """Return what packs frames. `to_plain` makes plain data of a value that is no frame."""
    return msgspec.msgpack.Encoder(enc_hook=to_plain).encode


def reader(
    frames: Any, whom: str, from_plain: Callable[[type[Any], Any], Any] | None = None
) -> Callable[[bytes], Any]:
    """Return what reads `frames`, a type or union of types, sent to `whom` ("a runner").

    `from_plain(type, data)` makes a value that is no frame; its ValueErrors refuse the frame.
    What is returned raises BadMessage for all that is none of `frames`, and nothing else.
    """
    decode = msgspec.msgpack.Decoder(frames, dec_hook=from_plain).decode

    def read(data: bytes) -> Any:
        """Read one frame. Raises BadMessage."""
        if len(data) > MAX_FRAME_BYTES:
            raise BadMessage(f"a frame has {len(data)} bytes; the limit is {MAX_FRAME_BYTES}")
        try:
            return decode(data)
        except Exception as error:  # msgspec's own, UnicodeDecodeError, RecursionError
            raise BadMessage(f"not a frame for {whom}: {error}") from error

    return read
