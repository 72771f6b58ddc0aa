"""Talks to the disk: the table of tasks as this process knows it, and who is asked for a task.

`order` and `attempt`, which decide, are pure; `book` looks at the file.
"""

from gateway.requests.tasks.attempt import Attempt, leads_on
from gateway.requests.tasks.book import TaskBook, open_tasks
from gateway.requests.tasks.order import CandidateChoice, CandidateOrder, order_of

__all__ = [
    "Attempt",
    "CandidateChoice",
    "CandidateOrder",
    "TaskBook",
    "leads_on",
    "open_tasks",
    "order_of",
]
