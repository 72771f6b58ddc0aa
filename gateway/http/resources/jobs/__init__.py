"""Talks to clients about jobs, requests that run without a connection: submit, show, stream, stop.

Clients submit jobs at `/v1/jobs`. An answer made in the background is a job, too; its own path
shows it in its own dialect.
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
