"""Talks to the disk: the tables of tasks and of clients' profiles as this process knows them, and
who is asked for a task.

`order` and `attempt`, which decide, are pure; `book` looks at the file.
"""

from gateway.requests.tasks.attempt import Attempt, leads_on
from gateway.requests.tasks.book import ClientBook, TaskBook, open_profiles, open_tasks
from gateway.requests.tasks.order import CandidateChoice, CandidateOrder, order_of

__all__ = [
    "Attempt",
    "CandidateChoice",
    "CandidateOrder",
    "ClientBook",
    "TaskBook",
    "leads_on",
    "open_profiles",
    "open_tasks",
    "order_of",
]
