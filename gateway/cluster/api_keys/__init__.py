"""Talks to the bus: the API keys that are facts of the cluster, who they are and what they may use.

A secret is never kept: what a client offers is hashed and looked up.
"""

from gateway.cluster.api_keys.book import KeyBook
from gateway.cluster.api_keys.budgets import KeyBudgets, KeyTotals, OverBudget, used_elsewhere
from gateway.cluster.api_keys.keys import ApiKeys

__all__ = ["ApiKeys", "KeyBook", "KeyBudgets", "KeyTotals", "OverBudget", "used_elsewhere"]
