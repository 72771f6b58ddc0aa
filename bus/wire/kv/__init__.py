"""KV formats and the bytes that each needs. Cards, memory estimates and runners use them. Pure."""

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
