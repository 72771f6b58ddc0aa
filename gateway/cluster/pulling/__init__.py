"""Talks to the workers: models of a hub, by the names that people know, pulled by a node.

What a name means is pure; who pulls and how far it is, the workers say.
"""

from gateway.cluster.pulling.names import (
    KNOWN_NAMES,
    PullTarget,
    demanded_repository,
    is_revision,
    known_repository,
    names_of,
    pull_target,
)
from gateway.cluster.pulling.on_demand import PullsOnDemand, pulling_text
from gateway.cluster.pulling.workers import PullWorkers

__all__ = [
    "KNOWN_NAMES",
    "PullTarget",
    "PullWorkers",
    "PullsOnDemand",
    "demanded_repository",
    "is_revision",
    "known_repository",
    "names_of",
    "pull_target",
    "pulling_text",
]
