"""Talks to the records file and the application: stores and runs jobs, which are requests that
continue when their client has disconnected.

A job and its events (the output) are rows in the records file of a node. Every HTTP process of the
node claims jobs and runs them as its own requests. If a process dies, the other processes notice.
They run its jobs again, or end them with a reason.
"""

from gateway.records.jobs.anywhere import JobsAnywhere
from gateway.records.jobs.events import event_payload
from gateway.records.jobs.job import (
    JOB_PREFIX,
    OPEN,
    Job,
    JobTold,
    NewJob,
    State,
    job_of_run,
    job_request,
    job_told,
)
from gateway.records.jobs.leases import runner_name
from gateway.records.jobs.records import JobRecords, JobsFull
from gateway.records.jobs.run_scope import JobRun, run_of
from gateway.records.jobs.runner import RESULT_BYTES, Application, JobRunner, OpenRequests
from gateway.records.jobs.table import JobBounds, job_bounds

__all__ = [
    "JOB_PREFIX",
    "OPEN",
    "RESULT_BYTES",
    "Application",
    "Job",
    "JobBounds",
    "JobRecords",
    "JobRun",
    "JobRunner",
    "JobTold",
    "JobsAnywhere",
    "JobsFull",
    "NewJob",
    "OpenRequests",
    "State",
    "event_payload",
    "job_bounds",
    "job_of_run",
    "job_request",
    "job_told",
    "run_of",
    "runner_name",
]
