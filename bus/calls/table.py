"""The table of calls between the gateways of nodes: request, reply, permission.

Pure. A call may be repeated or run by two processes of a node, so each must be safe to run twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from bus.wire.calls import answers, conversations, jobs, models, nodes, processes, traces
from bus.wire.calls.answers import Done
from bus.wire.messages.wire import Message

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)
Right = Literal["peer", "admin", "process"]
"""The permission to make a call. `peer`: each node of the cluster. `admin`: a node of the cluster,
if the client behind the call is the owner of that node or has an API key with the scope `admin`.
`process`: only the HTTP processes of the same node, over a socket that only its user can open."""


@dataclass(frozen=True, slots=True)
class TypedCall(Generic[Q, R]):
    """One row of the table: a call, the type of its request and the type of its reply.

    `is_slow`: the reply may take longer than `ANSWER_S`, as long as the node reports every
    `REPEAT_S` that it computes the reply.
    """

    name: str
    request: type[Q]
    reply: type[R]
    right: Right = "peer"
    is_slow: bool = False


FIND_ANSWER = TypedCall("answer.find", answers.FindAnswer, answers.AnswerFound)
LABEL_ANSWER = TypedCall("answer.label", answers.LabelAnswer, Done)
LIST_ANSWERS = TypedCall("answer.list", answers.ListAnswers, answers.AnswersFound)
REMOVE_ANSWER = TypedCall("answer.remove", answers.RemoveAnswer, Done)
STOP_ANSWER = TypedCall("answer.stop", answers.StopAnswer, Done)
STOP_REQUEST = TypedCall("request.stop", answers.StopRequest, Done)

FIND_CONVERSATION = TypedCall(
    "conversation.find", conversations.FindConversation, conversations.ConversationFound
)
READ_ITEMS = TypedCall("conversation.items", conversations.ReadItems, conversations.ItemsFound)
READ_PAGE = TypedCall("conversation.page", conversations.ReadPage, conversations.ItemsFound)
READ_ITEM = TypedCall("conversation.named", conversations.ReadItem, conversations.ItemsFound)
LABEL_CONVERSATION = TypedCall("conversation.label", conversations.LabelConversation, Done)
REMOVE_CONVERSATION = TypedCall("conversation.remove", conversations.RemoveConversation, Done)
REMOVE_ITEM = TypedCall("conversation.drop", conversations.RemoveItem, Done)
ADD_ITEMS = TypedCall("conversation.add", conversations.AddItems, conversations.ItemsAdded)
END_TURN = TypedCall("conversation.end", conversations.EndTurn, Done)

FIND_JOB = TypedCall("job.find", jobs.FindJob, jobs.JobFound)
READ_JOB_BODY = TypedCall("job.body", jobs.ReadJobBody, jobs.JobBodyRead)
FIND_POSITION = TypedCall("job.position", jobs.FindPosition, jobs.JobPosition)
READ_EVENTS = TypedCall("job.more", jobs.ReadEvents, jobs.EventsRead)
LIST_JOBS = TypedCall("job.list", jobs.ListJobs, jobs.JobsFound)
STOP_JOB = TypedCall("job.stop", jobs.StopJob, jobs.Noted)
REMOVE_JOB = TypedCall("job.remove", jobs.RemoveJob, jobs.Noted)

FIND_TRACE = TypedCall("trace.find", traces.FindTrace, traces.TraceFound, "admin")
REMOVE_TRACE = TypedCall("trace.remove", traces.RemoveTrace, Done, "admin")
LIST_TRACES = TypedCall("trace.latest", traces.ListTraces, traces.TracesFound, "admin")

READ_SETTINGS = TypedCall("settings.read", nodes.ReadSettings, nodes.SettingsRead, "admin")
CHANGE_SETTINGS = TypedCall("settings.change", nodes.ChangeSettings, nodes.SettingsRead, "admin")
RESTART = TypedCall("node.restart", nodes.RestartServices, nodes.Restarting, "admin", is_slow=True)
READ_NODE = TypedCall("diagnostics.node", nodes.ReadNode, nodes.Document, "admin")
READ_RUNNERS = TypedCall("diagnostics.runners", nodes.ReadRunners, nodes.Document, "admin")
EXAMINE = TypedCall("diagnostics.process", nodes.Examine, nodes.Examined, "admin", is_slow=True)
CANCEL_AT_RUNNER = TypedCall("runner.cancel", nodes.CancelAtRunner, Done, "admin", is_slow=True)
TAKE_CAPTURE = TypedCall("capture.take", nodes.TakeCapture, nodes.Capture, "admin")
FORGET_CAPTURE = TypedCall("capture.fetched", nodes.ForgetCapture, jobs.Noted, "admin")

DELETE_MODEL = TypedCall("delete_model", models.DeleteModel, models.Removal, "admin")
READ_CARD = TypedCall("read_card", models.ReadCard, models.CardOnNode, "admin")
WRITE_CARD = TypedCall("write_card", models.WriteCard, models.CardOnNode, "admin")
REMOVE_CARD = TypedCall("remove_card", models.RemoveCard, models.CardOnNode, "admin")
CANCEL_PULL = TypedCall("pull.cancel", models.CancelPull, models.PullResult, "admin", is_slow=True)
PAUSE_PULL = TypedCall("pull.pause", models.PausePull, models.PullResult, "admin")
RESUME_PULL = TypedCall("pull.resume", models.ResumePull, models.PullResult, "admin")

# between the HTTP processes of one node
STOP_HERE = TypedCall("process.stop", processes.StopHere, Done, "process")
STOP_ANSWER_HERE = TypedCall("process.stop_answer", processes.StopAnswerHere, Done, "process")
READ_STREAM = TypedCall("process.stream", processes.ReadStream, processes.StreamRead, "process")
READ_OPEN_REQUESTS = TypedCall(
    "process.requests", processes.ReadOpenRequests, processes.OpenRequestsRead, "process"
)
READ_PROBLEMS = TypedCall(
    "process.problems", processes.ReadProblems, processes.ProblemsRead, "process"
)
READ_CLIENTS = TypedCall("process.clients", processes.ReadClients, processes.ClientsRead, "process")
NOTE_RESTS = TypedCall("process.rests", processes.NoteRests, jobs.Noted, "process")


def _calls() -> dict[str, TypedCall[Any, Any]]:
    """Return the calls above, by name. Raises ValueError if two calls have the same name."""
    calls: dict[str, TypedCall[Any, Any]] = {}
    for call in globals().values():
        if isinstance(call, TypedCall):
            if call.name in calls:
                raise ValueError(f"two calls have the name {call.name}")
            calls[call.name] = call
    return calls


CALLS: Mapping[str, TypedCall[Any, Any]] = _calls()
"""All calls, by name."""
