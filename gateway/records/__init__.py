"""What a gateway keeps of its answers, in memory: found with the API key that asked for them alone.

A node that is restarted has forgotten them.
"""

from gateway.records.answers import AnswerRecords
from gateway.records.store import AnswerStore

__all__ = ["AnswerRecords", "AnswerStore"]
