"""Talks to the disk and to the gateways of other nodes: stores a gateway's records (the request
log, traces, jobs, answers).

Each node has one SQLite file (`records.sqlite` in the state folder). Every HTTP process of the node
opens this file, in a separate thread, so that the event loop never waits for the disk. The file has
the request log, traces, jobs and the usage of each client. It also has stored answers and
conversations, which later requests with the same API key can continue. To read a record of another
node, a gateway asks that node's gateway.
"""

from gateway.records.all_records import AllRecords, open_all
from gateway.records.answers import AnswerRecords, AnswersListed
from gateway.records.client_use import (
    ClientFigures,
    ClientTotals,
    ClientUse,
    client_told,
    kept_clients,
    seen_now,
    summed_clients,
)
from gateway.records.conversations import (
    FAR_BYTES,
    MOST_BYTES,
    MOST_ITEMS,
    Added,
    Conversation,
    ConversationRecords,
    EndedTurn,
    FewItems,
    conversation_full,
    conversation_not_found,
    conversation_too_far,
    no_such_item,
)
from gateway.records.file import RecordsFile
from gateway.records.jobs import (
    JOB_PREFIX,
    Application,
    Job,
    JobRecords,
    JobRun,
    JobRunner,
    JobsAnywhere,
    JobsFull,
    JobTold,
    NewJob,
    event_payload,
    job_bounds,
    job_of_run,
    job_request,
    job_told,
    run_of,
    runner_name,
)
from gateway.records.kept_answers import AnswerBounds, ListedQuery, answer_bounds
from gateway.records.kept_traces import TraceRecords
from gateway.records.node_records import NodeRecords, open_records
from gateway.records.request_log import Kind, LogBounds, RecentQuery, RequestRow, StatsTold
from gateway.records.statements import RecordsUnavailable
from gateway.records.traces import TraceRow

__all__ = [
    "FAR_BYTES",
    "JOB_PREFIX",
    "MOST_BYTES",
    "MOST_ITEMS",
    "Added",
    "AllRecords",
    "AnswerBounds",
    "AnswerRecords",
    "AnswersListed",
    "Application",
    "ClientFigures",
    "ClientTotals",
    "ClientUse",
    "Conversation",
    "ConversationRecords",
    "EndedTurn",
    "FewItems",
    "Job",
    "JobRecords",
    "JobRun",
    "JobRunner",
    "JobTold",
    "JobsAnywhere",
    "JobsFull",
    "Kind",
    "ListedQuery",
    "LogBounds",
    "NewJob",
    "NodeRecords",
    "RecentQuery",
    "RecordsFile",
    "RecordsUnavailable",
    "RequestRow",
    "StatsTold",
    "TraceRecords",
    "TraceRow",
    "answer_bounds",
    "client_told",
    "conversation_full",
    "conversation_not_found",
    "conversation_too_far",
    "event_payload",
    "job_bounds",
    "job_of_run",
    "job_request",
    "job_told",
    "kept_clients",
    "no_such_item",
    "open_all",
    "open_records",
    "run_of",
    "runner_name",
    "seen_now",
    "summed_clients",
]
