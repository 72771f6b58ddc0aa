"""Decides where a new replica goes, and which replicas end. The leader does this without a command.

Pure. `master.pool` says when a replica is due; this package finds the memory for it.
"""

from master.decisions.replicating.replicas import as_it_stands, replicate

__all__ = ["as_it_stands", "replicate"]
