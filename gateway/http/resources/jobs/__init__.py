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
from gateway.http.resources.jobs.one import JobCancel, JobEvents, JobResource
from gateway.http.resources.jobs.submit import JobBody, JobList

__all__ = [
    "BackgroundAnswer",
    "BackgroundCancel",
    "BackgroundItems",
    "JobBody",
    "JobCancel",
    "JobEvents",
    "JobList",
    "JobResource",
    "answer_in_background",
]
