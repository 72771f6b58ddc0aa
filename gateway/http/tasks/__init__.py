"""Talks to clients whose request names a task or a provider's model. It also lists tasks."""

from gateway.http.tasks.answering import answer_as_named, own_model
from gateway.http.tasks.listed import listing_named, listings_of
from gateway.http.tasks.settings import (
    ConfigAnswer,
    ConfigBody,
    ConfigResource,
    TaskList,
    TasksAnswer,
)
from gateway.http.tasks.translated import named_as_asked, submitted

__all__ = [
    "ConfigAnswer",
    "ConfigBody",
    "ConfigResource",
    "TaskList",
    "TasksAnswer",
    "answer_as_named",
    "listing_named",
    "listings_of",
    "named_as_asked",
    "own_model",
    "submitted",
]
