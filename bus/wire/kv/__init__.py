"""How KV may be held, and the bytes that each way takes: what a card, a bill and a runner go by.
Pure.
"""

from bus.wire.kv.kinds import BITS, GROUPS, KINDS, KvKind, group_of, held_bytes, not_a_kind

__all__ = ["BITS", "GROUPS", "KINDS", "KvKind", "group_of", "held_bytes", "not_a_kind"]
