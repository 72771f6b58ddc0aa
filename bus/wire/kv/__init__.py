"""KV formats and the bytes that each takes, for cards, bills and runners. Pure."""

from bus.wire.kv.kinds import (
    BITS,
    GROUPS,
    KINDS,
    SINKS,
    WINDOW_PATTERN,
    KvKind,
    group_of,
    held_bytes,
    kind_for,
    not_a_kind,
    window_bytes,
    window_of,
)

__all__ = [
    "BITS",
    "GROUPS",
    "KINDS",
    "SINKS",
    "WINDOW_PATTERN",
    "KvKind",
    "group_of",
    "held_bytes",
    "kind_for",
    "not_a_kind",
    "window_bytes",
    "window_of",
]
