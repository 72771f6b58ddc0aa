"""Talks to other nodes: copies KV of prompts where that is faster than computing (decision 0106).

`choice` decides, `fetch` asks for pieces; both are pure. `shelf` knows the files of this node.
`mover` works in the weights thread, and `moves` is its door for the worker's loop. A copy gets its
name only after its sums were checked, and is deleted soon after the node that computed it has
deleted the original.
"""

from worker.transfer.kv_moves.moves import KvMoves

__all__ = ["KvMoves"]
