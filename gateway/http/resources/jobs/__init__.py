"""Talks to clients about requests that run without them: submitted, told, streamed, stopped.

A job is asked for at `/v1/jobs`; an answer with a name that is made in the background is a job too,
told at its own path, in its own dialect.
"""

from gateway.http.resources.jobs.background import (
    BackgroundAnswer,
    BackgroundCancel,
    BackgroundItems,
    answer_in_background,
)
from gateway.http.resources.jobs.one import (
    JobAnswer,
    JobCancel,
    JobEvents,
    JobResource,
    RemovedJob,
)
from gateway.http.resources.jobs.submit import (
    JobBody,
    JobList,
    JobsAnswer,
)

__all__ = [
    "BackgroundAnswer",
    "BackgroundCancel",
    "BackgroundItems",
    "JobAnswer",
    "JobBody",
    "JobCancel",
    "JobEvents",
    "JobList",
    "JobResource",
    "JobsAnswer",
    "RemovedJob",
    "answer_in_background",
]
