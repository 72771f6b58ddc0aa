"""The pool over the wire: pins, what waits for memory and why, and how copies stand.

Pure: messages alone.
"""

from bus.wire.pool.messages import MAX_PINS, Pin, PoolCopy, PoolReading, PoolWait

__all__ = ["MAX_PINS", "Pin", "PoolCopy", "PoolReading", "PoolWait"]
