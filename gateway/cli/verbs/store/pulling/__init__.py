"""Talks to the node's API about pulls: begins one, lists them, changes them, and offers one for a
missing model. Other verbs use its column `PaceColumn` to show the speed of their own transfers."""

from gateway.cli.verbs.store.pulling.offer import pull_if_missing
from gateway.cli.verbs.store.pulling.pull import REMARK_S, PaceColumn, pace_of, pull
from gateway.cli.verbs.store.pulling.pulls import pulls

__all__ = ["REMARK_S", "PaceColumn", "pace_of", "pull", "pull_if_missing", "pulls"]
