"""Talks to the bus: the cluster's API keys, with their names and budgets.

The secret of a key is never stored. shoal stores the secret's hash, and finds a key by it.
"""

from gateway.cluster.api_keys.book import KeyBook
from gateway.cluster.api_keys.budgets import KeyBudgets, KeyTotals, OverBudget, used_elsewhere
from gateway.cluster.api_keys.keys import ApiKeys

__all__ = ["ApiKeys", "KeyBook", "KeyBudgets", "KeyTotals", "OverBudget", "used_elsewhere"]
