"""Talks to the workers: downloads ("pulls") of models from a hub, and checks of models on disk.

Clients can request a model by a well-known short name; pure code finds its full name. The workers
report which node pulls or verifies a model, and its progress.
"""

from gateway.control.pulling.changes import (
    Change,
    answer_pull_changes,
    change_pulls,
    nodes_pulling,
    pulls_of,
)
from gateway.control.pulling.fit import Fit, Verdict
from gateway.control.pulling.fitting import Fitting, HeldPull
from gateway.control.pulling.names import (
    KNOWN_NAMES,
    PullTarget,
    demanded_repository,
    is_revision,
    known_repository,
    names_of,
    pull_target,
)
from gateway.control.pulling.on_demand import PullsOnDemand, pulling_text
from gateway.control.pulling.splitting import SplitPlan, SplitStage, Splitting
from gateway.control.pulling.sync_plan import CopyAt, SyncPlan, sync_plan
from gateway.control.pulling.syncing import AskForCopy, CopyState, copied
from gateway.control.pulling.workers import Workers

__all__ = [
    "KNOWN_NAMES",
    "AskForCopy",
    "Change",
    "CopyAt",
    "CopyState",
    "Fit",
    "Fitting",
    "HeldPull",
    "PullTarget",
    "PullsOnDemand",
    "SplitPlan",
    "SplitStage",
    "Splitting",
    "SyncPlan",
    "Verdict",
    "Workers",
    "answer_pull_changes",
    "change_pulls",
    "copied",
    "demanded_repository",
    "is_revision",
    "known_repository",
    "names_of",
    "nodes_pulling",
    "pull_target",
    "pulling_text",
    "pulls_of",
    "sync_plan",
]
