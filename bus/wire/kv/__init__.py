"""KV formats and the bytes that each needs, for cards, memory estimates and runners; and messages
about KV that moves between nodes (`moves`). Pure."""

from bus.wire.kv import moves
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
from bus.wire.kv.moves import (
    MOST_NAMES,
    AskRun,
    AskRunsGone,
    RunOffered,
    RunsGone,
    RunSought,
    SeekRun,
    SoughtWhat,
)

__all__ = [
    "BITS",
    "GROUPS",
    "KINDS",
    "MOST_NAMES",
    "SINKS",
    "WINDOW_PATTERN",
    "AskRun",
    "AskRunsGone",
    "KvKind",
    "RunOffered",
    "RunSought",
    "RunsGone",
    "SeekRun",
    "SoughtWhat",
    "group_of",
    "held_bytes",
    "kind_for",
    "moves",
    "not_a_kind",
    "window_bytes",
    "window_of",
]
