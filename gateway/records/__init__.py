"""Talks to the HTTP processes of a node: what they keep of their answers, in memory, for those who
asked with the same API key.

A node that is restarted has forgotten them.
"""

from gateway.records.answers import AnswerRecords, AnswersSilent, ListedAnswer
from gateway.records.store import AnswerStore

__all__ = ["AnswerRecords", "AnswerStore", "AnswersSilent", "ListedAnswer"]
