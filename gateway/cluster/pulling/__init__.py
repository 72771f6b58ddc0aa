"""Talks to the workers: models of a hub, by the names that people know, pulled by a node, and those
on a node's disk verified there.

What a name means is pure; who pulls or verifies and how far it is, the workers say.
"""

from gateway.cluster.pulling.fit import Fit, Verdict
from gateway.cluster.pulling.fitting import Fitting, HeldPull
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
from gateway.cluster.pulling.sync_plan import CopyAt, SyncPlan, sync_plan
from gateway.cluster.pulling.syncing import AskForCopy, CopyState, copied
from gateway.cluster.pulling.workers import Workers

__all__ = [
    "KNOWN_NAMES",
    "AskForCopy",
    "CopyAt",
    "CopyState",
    "Fit",
    "Fitting",
    "HeldPull",
    "PullTarget",
    "PullsOnDemand",
    "SyncPlan",
    "Verdict",
    "Workers",
    "copied",
    "demanded_repository",
    "is_revision",
    "known_repository",
    "names_of",
    "pull_target",
    "pulling_text",
    "sync_plan",
]
