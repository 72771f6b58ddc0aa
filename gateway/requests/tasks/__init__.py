"""Talks to the disk: the tables of tasks and client profiles of this process, and the order of a
task's candidates.

`order` and `attempt` decide, and are pure; `book` reads the files.
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
