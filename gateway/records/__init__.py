"""Talks to the disk, and to the other HTTP processes of a node: what a gateway remembers.

One SQLite file a node (`records.sqlite` in the state folder), opened by each HTTP process in a
thread of its own and never on an event loop, has the request log. Answers that later requests go on
from are in memory, for those who asked with the same API key: a node that is restarted has
forgotten them.
"""

from gateway.records.answers import AnswerRecords, AnswersSilent, ListedAnswer
from gateway.records.file import RecordsFile, RecordsUnavailable
from gateway.records.node_records import NodeRecords, open_records
from gateway.records.request_log import Kind, LogBounds, RecentQuery, RequestRow
from gateway.records.store import AnswerStore

__all__ = [
    "AnswerRecords",
    "AnswerStore",
    "AnswersSilent",
    "Kind",
    "ListedAnswer",
    "LogBounds",
    "NodeRecords",
    "RecentQuery",
    "RecordsFile",
    "RecordsUnavailable",
    "RequestRow",
    "open_records",
]
