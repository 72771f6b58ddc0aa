"""Talks to the disk: has the tables of tasks and client profiles, and decides in which order the
candidates of a task are tried.

A task is a name that clients use instead of a model; its candidates are models that can answer. The
modules `order` and `attempt` are pure; `book` reads the files.
"""

from gateway.requests.tasks.attempt import OF_WAITING, Attempt, leads_on
from gateway.requests.tasks.book import (
    ClientBook,
    TaskBook,
    follow_files,
    open_profiles,
    open_tasks,
)
from gateway.requests.tasks.order import CandidateChoice, CandidateOrder, order_of

__all__ = [
    "OF_WAITING",
    "Attempt",
    "CandidateChoice",
    "CandidateOrder",
    "ClientBook",
    "TaskBook",
    "follow_files",
    "leads_on",
    "open_profiles",
    "open_tasks",
    "order_of",
]
