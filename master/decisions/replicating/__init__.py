"""Where a replica goes and which replicas end: events of the leader's own.

Pure. `master.pool` says when a replica is due; this room finds the memory for it.
"""

from master.decisions.replicating.replicas import as_it_stands, replicate

__all__ = ["as_it_stands", "replicate"]
