"""Talks to clients who have a node pull a model from a hub, or verify one that lies on its disk."""

from gateway.http.resources.pulls.plan import PullPlan
from gateway.http.resources.pulls.pull import (
    ModelToFetch,
    PullAnswer,
    PullBody,
    PullEvent,
    PullModel,
)
from gateway.http.resources.pulls.verify import VerifyBody, VerifyEvent, VerifyModel

__all__ = [
    "ModelToFetch",
    "PullAnswer",
    "PullBody",
    "PullEvent",
    "PullModel",
    "PullPlan",
    "VerifyBody",
    "VerifyEvent",
    "VerifyModel",
]
