"""Talks to clients about requests that outlive their connection: jobs, which run without one
(submit, show, stream and stop them), and streams that a client reads again.

Clients submit jobs at `/v1/jobs`. An answer that a dialect makes in the background is also a job,
and clients can read it at that dialect's own path.
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
from gateway.http.resources.jobs.restoring import continue_streams
from gateway.http.resources.jobs.streams import StreamEvents
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
    "StreamEvents",
    "answer_in_background",
    "continue_streams",
]
