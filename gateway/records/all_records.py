"""Talks to the disk and the gateways of other nodes: everything that a node stores about requests,
opened for one HTTP process.

`AllRecords` gives access to all kinds of stored records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bus.calls import NodeCalls, ProcessCalls, table
from bus.links.reactor import Reactor
from bus.process.logs import Log
from bus.wire.calls.processes import ProblemsRead
from bus.wire.ids import Boot, RequestId
from gateway.records.answers import AnswerRecords
from gateway.records.conversations import ConversationRecords
from gateway.records.jobs import (
    Application,
    JobRecords,
    JobRunner,
    JobsAnywhere,
    OpenRequests,
    job_bounds,
    runner_name,
)
from gateway.records.kept_answers import answer_bounds
from gateway.records.kept_traces import TraceRecords
from gateway.records.node_records import NodeRecords, open_records
from gateway.view.options import Options


@dataclass(frozen=True, slots=True)
class AllRecords:
    """The stored records of this node and, through calls, of all others. `of_node` is the node's
    own file, with the request log; `job_runner` runs the jobs that this process claims."""

    options: Options
    reactor: Reactor
    of_node: NodeRecords
    answers: AnswerRecords
    conversations: ConversationRecords
    traces: TraceRecords
    jobs: JobsAnywhere
    job_runner: JobRunner


def open_all(
    options: Options,
    log: Log,
    *,
    boot: Boot,
    reactor: Reactor,
    near: ProcessCalls,
    calls: NodeCalls,
    application: Application,
    requests: OpenRequests,
    stop: Callable[[RequestId], bool],
) -> AllRecords:
    """Return the records of a node. `requests` are the open requests of this process, which `stop`
    stops; `application` gets the requests of jobs."""
    of_node = open_records(options, log)
    near.answer(
        table.READ_PROBLEMS, lambda _: ProblemsRead(problems=tuple(of_node.condition.problems))
    )
    answers = AnswerRecords(
        records=of_node,
        bounds=answer_bounds(options),
        near=near,
        calls=calls,
        node=options.node,
        processes=options.processes,
        stop=stop,
        log=log,
    )
    jobs = JobsAnywhere(JobRecords(of_node, job_bounds(options)), calls, options.node)
    return AllRecords(
        options=options,
        reactor=reactor,
        of_node=of_node,
        answers=answers,
        conversations=ConversationRecords(of_node, answers, calls, options.node),
        traces=TraceRecords(of_node, calls, options.node),
        jobs=jobs,
        job_runner=JobRunner(
            jobs.here,
            runner_name(near.number, boot),
            application=application,
            requests=requests,
            log=log,
            port=options.port,
        ),
    )
