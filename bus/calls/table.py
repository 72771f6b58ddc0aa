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
"""Who may make a call. `peer`: each node of the cluster. `admin`: a node of the cluster, if the
client behind the call is the owner of that node or has an API key with the scope `admin`.
`process`: only the HTTP processes of the same node, over a socket that only its user can open."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, R]):
    """One row of the table: a call, the type of its request and the type of its reply.

    `is_slow`: the reply may take longer than `ANSWER_S`, as long as the node reports every
    `REPEAT_S` that it computes the reply.
    """

    name: str
    request: type[Q]
    reply: type[R]
    right: Right = "peer"
    is_slow: bool = False


FIND_ANSWER = Call("answer.find", answers.FindAnswer, answers.AnswerFound)
LABEL_ANSWER = Call("answer.label", answers.LabelAnswer, Done)
LIST_ANSWERS = Call("answer.list", answers.ListAnswers, answers.AnswersFound)
REMOVE_ANSWER = Call("answer.remove", answers.RemoveAnswer, Done)
STOP_ANSWER = Call("answer.stop", answers.StopAnswer, Done)
STOP_REQUEST = Call("request.stop", answers.StopRequest, Done)

FIND_CONVERSATION = Call(
    "conversation.find", conversations.FindConversation, conversations.ConversationFound
)
READ_ITEMS = Call("conversation.items", conversations.ReadItems, conversations.ItemsFound)
READ_PAGE = Call("conversation.page", conversations.ReadPage, conversations.ItemsFound)
READ_ITEM = Call("conversation.named", conversations.ReadItem, conversations.ItemsFound)
LABEL_CONVERSATION = Call("conversation.label", conversations.LabelConversation, Done)
REMOVE_CONVERSATION = Call("conversation.remove", conversations.RemoveConversation, Done)
REMOVE_ITEM = Call("conversation.drop", conversations.RemoveItem, Done)
ADD_ITEMS = Call("conversation.add", conversations.AddItems, conversations.ItemsAdded)
END_TURN = Call("conversation.end", conversations.EndTurn, Done)

FIND_JOB = Call("job.find", jobs.FindJob, jobs.JobFound)
READ_JOB_BODY = Call("job.body", jobs.ReadJobBody, jobs.JobBody)
FIND_POSITION = Call("job.position", jobs.FindPosition, jobs.JobPosition)
READ_EVENTS = Call("job.more", jobs.ReadEvents, jobs.EventsRead)
LIST_JOBS = Call("job.list", jobs.ListJobs, jobs.JobsFound)
STOP_JOB = Call("job.stop", jobs.StopJob, jobs.Noted)
REMOVE_JOB = Call("job.remove", jobs.RemoveJob, jobs.Noted)

FIND_TRACE = Call("trace.find", traces.FindTrace, traces.TraceFound, "admin")
REMOVE_TRACE = Call("trace.remove", traces.RemoveTrace, Done, "admin")
LIST_TRACES = Call("trace.latest", traces.ListTraces, traces.TracesFound, "admin")

READ_SETTINGS = Call("settings.read", nodes.ReadSettings, nodes.SettingsRead, "admin")
CHANGE_SETTINGS = Call("settings.change", nodes.ChangeSettings, nodes.SettingsRead, "admin")
RESTART = Call("node.restart", nodes.RestartServices, nodes.Restarting, "admin", is_slow=True)
READ_NODE = Call("diagnostics.node", nodes.ReadNode, nodes.Document, "admin")
READ_RUNNERS = Call("diagnostics.runners", nodes.ReadRunners, nodes.Document, "admin")
EXAMINE = Call("diagnostics.process", nodes.Examine, nodes.Examined, "admin", is_slow=True)
CANCEL_AT_RUNNER = Call("runner.cancel", nodes.CancelAtRunner, Done, "admin", is_slow=True)
TAKE_CAPTURE = Call("capture.take", nodes.TakeCapture, nodes.Capture, "admin")
FORGET_CAPTURE = Call("capture.fetched", nodes.ForgetCapture, jobs.Noted, "admin")

DELETE_MODEL = Call("delete_model", models.DeleteModel, models.Removal, "admin")
READ_CARD = Call("read_card", models.ReadCard, models.CardOnNode, "admin")
WRITE_CARD = Call("write_card", models.WriteCard, models.CardOnNode, "admin")
REMOVE_CARD = Call("remove_card", models.RemoveCard, models.CardOnNode, "admin")

STOP_HERE = Call("process.stop", processes.StopHere, Done, "process")
STOP_ANSWER_HERE = Call("process.stop_answer", processes.StopAnswerHere, Done, "process")
READ_OPEN_REQUESTS = Call(
    "process.requests", processes.ReadOpenRequests, processes.OpenRequestsRead, "process"
)
READ_PROBLEMS = Call("process.problems", processes.ReadProblems, processes.ProblemsRead, "process")
READ_CLIENTS = Call("process.clients", processes.ReadClients, processes.ClientsRead, "process")
NOTE_RESTS = Call("process.rests", processes.NoteRests, jobs.Noted, "process")


def _calls() -> dict[str, Call[Any, Any]]:
    """Return the calls above, by name. Raises ValueError if two calls have the same name."""
    calls: dict[str, Call[Any, Any]] = {}
    for call in globals().values():
        if isinstance(call, Call):
            if call.name in calls:
                raise ValueError(f"two calls have the name {call.name}")
            calls[call.name] = call
    return calls


CALLS: Mapping[str, Call[Any, Any]] = _calls()
"""All calls, by name."""
