"""Talks to other nodes: copies KV of prompts if that is faster than computing (decision 0106).

`choice` decides whether to copy, and `fetch` which pieces to request; both are pure. `shelf` reads
the files of this node. `mover` works in the weights thread, and the worker's loop calls it through
`moves`. A copied file gets its name only after its checksums were checked. It is deleted soon after
the node that computed it has deleted the original.
"""

from worker.transfer.kv_moves.moves import KvMoves

__all__ = ["KvMoves"]
