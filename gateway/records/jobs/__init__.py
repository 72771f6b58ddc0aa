"""Talks to the records file and the application: requests that run without their clients.

A job is a row of the node's file, with all its events. Any HTTP process of the node takes jobs and
runs them as requests of its own. If a process dies, the others notice; its jobs are run again or
ended with a reason.
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
from gateway.records.jobs.run_scope import JobRun, job_run_of, mark_of
from gateway.records.jobs.runner import RESULT_BYTES, Asgi, JobRunner
from gateway.records.jobs.table import JobBounds, job_bounds

__all__ = [
    "JOB_PREFIX",
    "OPEN",
    "RESULT_BYTES",
    "Asgi",
    "Job",
    "JobBounds",
    "JobRecords",
    "JobRun",
    "JobRunner",
    "JobTold",
    "JobsAnywhere",
    "JobsFull",
    "NewJob",
    "State",
    "event_payload",
    "job_bounds",
    "job_of_run",
    "job_request",
    "job_run_of",
    "job_told",
    "mark_of",
    "runner_name",
]
