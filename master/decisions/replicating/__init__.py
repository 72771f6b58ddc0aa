"""Where a replica goes, and which go again: events of the holder's own.

Pure. When one is due is told in `master.pool`; here is where there is room for it.
"""

from master.decisions.replicating.replicas import as_it_stands, replicate

__all__ = ["as_it_stands", "replicate"]
