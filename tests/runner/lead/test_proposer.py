"""One runner drafts for another, over real sockets in one process; the engine is a fake one."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from bus.client import Speaker
from bus.links.reactor import PollReactor
from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.process.logs import Log
from bus.service import Shell
from bus.wire.data_frames import pack_ids, pack_to_gateway, unpack_ids, unpack_to_runner
from bus.wire.ids import Boot, InstanceId, ModelId, NodeId, TokenId
from bus.wire.messages.control import ProposerPlace, RunnerSpec
from bus.wire.messages.requests import DraftWeights, Sampling
from bus.wire.messages.tokens import Hello, Ping, Pong, Welcome
from bus.wire.proposals import (
    Attach,
    Attached,
    FromProposer,
    ProposalRefused,
    Propose,
    Proposed,
    Withdraw,
)
from runner.engine import EngineStatus
from runner.lead import LeadLoop, RowProposer, Stepped
from runner.recorder import FlightRecorder
from runner.schedule import Scheduler
from runner.serving import ProposerLink, RequestServer
from runner.serving.proposals import NoProposals
from tests.harness.engine import facts, whole_output
from tests.harness.scheduling import Loop

PATIENCE_S = 20.0
GREEDY = Sampling(temperature=0.0)
SPEC: dict[str, Any] = {
    "generation": 1, "rank": 0, "size": 1, "path": "", "dtype": "float32", "first_layer": 0,
    "last_layer": 1, "context_tokens": 200, "memory_limit_bytes": 1 << 30,
}  # fmt: skip


class Drafting:
    """The loop of a proposer's engine, which steps only when it is told to."""

    def __init__(self) -> None:
        self.loop = Loop(facts(context_tokens=200))
        self.facts = self.loop.facts
        self.status = EngineStatus()

    @contextmanager
    def scheduling(self) -> Generator[Scheduler]:
        yield self.loop.scheduler

    def step(self, post: Callable[[Stepped], None]) -> None:
        """Run until nothing is left to do, and post the events of each turn."""
        events: list[Any] = []
        take, self.loop.take = self.loop.take, events.extend  # type: ignore[method-assign]
        while self.loop.turn():
            post(Stepped(len(self.loop.plans), tuple(events), 0.0, 0.0, 0.0))
            events.clear()
        self.loop.take = take  # type: ignore[method-assign]


class Taken:
    """What a verifier's scheduler is told."""

    def __init__(self) -> None:
        self.why: list[str] = []
        self.drafts: dict[int, Sequence[int]] = {}
        self.refused: dict[int, int | None] = {}

    def usable(self, why_not: str) -> None:
        self.why.append(why_not)

    def drafted(self, number: int, tokens: Sequence[TokenId]) -> None:
        self.drafts[number] = tokens

    def undrafted(self, number: int, has: int | None) -> None:
        self.refused[number] = has


class Pair:
    """A proposer and a verifier's link to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.reactor, self.logged = folder, PollReactor(), io.StringIO()
        address = f"ipc://{folder}/data"
        spec = RunnerSpec(
            instance=InstanceId("i2"), model=ModelId("small"), addresses=(address,), **SPEC
        )
        self.server = RequestServer(
            spec, self.shell("n2"), recorder=FlightRecorder(), tap=lambda _step, _entries: None
        )
        self.server.responder = cast(Any, self)
        self.server.phase = "ready"
        self.drafting = Drafting()
        self.proposer = RowProposer(
            self.server, self.shell("n2"), cast(LeadLoop, self.drafting), lambda: "same"
        )
        self.server.proposals = self.proposer
        weights = DraftWeights(model=ModelId("small"), why_not="not here")
        own = spec.model_copy(
            update={"instance": InstanceId("i1"), "model": ModelId("big"), "draft": weights}
        )
        self.taken = Taken()
        self.link = ProposerLink(own, self.shell("n1"), self.taken)
        self.link.vocabulary = "same"
        self.place = ProposerPlace(
            instance=InstanceId("i1"),
            generation=1,
            model=ModelId("small"),
            node=NodeId("n2"),
            proposer=InstanceId("i2"),
            proposer_generation=1,
            address=address,
        )

    def shell(self, node: str) -> Shell:
        log = Log(node=node, process="runner:00", stream=self.logged)
        speaker = Speaker(NodeId(node), "runner:00", Boot("b"))
        return Shell(speaker, Endpoints(str(self.folder)), self.reactor, log)

    def step(self, now: float) -> int:
        """What the server asks of its responder for a pong."""
        return 0

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, (self.taken.why, self.logged.getvalue())
            self.reactor.turn(0.01)
            self.link.watch(self.reactor.now())
            self.drafting.step(self.proposer.stepped)

    def ask(self, number: int = 1, tokens: Sequence[int] = (1, 2, 3), **changes: Any) -> None:
        fields: dict[str, Any] = {
            "number": number, "row": 1, "base": 0, "tokens": pack_ids(tokens), "prompt": 2,
            "length": 5, "steps": 0, "seed": 7, "sampling": GREEDY, "remaining_ms": 9000,
        }  # fmt: skip
        assert self.link.ask(Propose(**fields | changes), self.reactor.now())

    def close(self) -> None:
        self.link.close()
        self.server.close("over")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def attached(pair: Pair, **changes: Any) -> Pair:
    pair.link.go_to(pair.place.model_copy(update=changes))
    pair.until(lambda: pair.taken.why and pair.taken.why[-1] == "")
    return pair


def test_a_draft_is_what_the_row_would_say_and_has_exactly_the_length(pair: Pair) -> None:
    attached(pair)
    assert pair.link.use.state == "ready" and pair.link.use.round_trip_ms > 0
    pair.ask(1)
    pair.until(lambda: pair.taken.drafts)
    assert list(pair.taken.drafts[1]) == whole_output(7, (1, 2, 3), 5, frozenset())
    pair.ask(2, tokens=(9,), base=3, length=32)
    pair.until(lambda: 2 in pair.taken.drafts)
    assert list(pair.taken.drafts[2]) == whole_output(7, (1, 2, 3, 9), 32, frozenset())
    assert not pair.drafting.loop.scheduler.load().running, "nothing is left behind"


def test_tokens_that_the_proposer_lacks_are_asked_for(pair: Pair) -> None:
    attached(pair)
    pair.ask(1, base=2)
    pair.until(lambda: pair.taken.refused)
    assert pair.taken.refused == {1: 0}
    pair.ask(2)
    pair.until(lambda: pair.taken.drafts)
    pair.link.withdraw(1)
    pair.ask(3, base=3, tokens=(4,))
    pair.until(lambda: 3 in pair.taken.refused)
    assert pair.taken.refused[3] == 0, "a withdrawn row is forgotten"


def test_other_refusals_do_not_end_the_connection(pair: Pair) -> None:
    attached(pair)
    pair.ask(1, length=64)
    pair.ask(2, tokens=(1, 2, 64))
    pair.ask(3, tokens=(1,) * 199)
    pair.until(lambda: len(pair.taken.refused) == 3)
    assert set(pair.taken.refused.values()) == {None}
    pair.server.phase = "draining"
    pair.ask(4)
    pair.until(lambda: 4 in pair.taken.refused)
    assert pair.link.use.state == "ready"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": ModelId("other")}, "unknown_model"),
        ({"proposer_generation": 2}, "wrong_generation"),
        ({"proposer": InstanceId("i3")}, "unknown_instance"),
    ],
)
def test_an_unfit_proposer_is_refused_by_type(
    pair: Pair, changes: dict[str, Any], reason: str
) -> None:
    pair.link.go_to(pair.place.model_copy(update=changes))
    pair.until(lambda: pair.link.use.reason)
    assert pair.link.use.reason == reason and pair.taken.why[-1]
    assert pair.link.use.state == "paused" and pair.link.use.lost == 0


def test_another_vocabulary_is_refused(pair: Pair) -> None:
    pair.link.vocabulary = "other"
    pair.link.go_to(pair.place)
    pair.until(lambda: pair.link.use.reason)
    assert pair.link.use.reason == "unsupported" and "vocabulary" in pair.link.use.why


def test_an_attached_verifier_keeps_the_instance_in_use_and_leaves_nothing(pair: Pair) -> None:
    attached(pair)
    pair.server.totals.used_at = -100.0
    pair.until(lambda: pair.server.totals.used_at > 0)
    for row in range(20):
        pair.ask(row + 1, row=row)
    pair.until(lambda: len(pair.taken.drafts) + len(pair.taken.refused) == 20)
    assert pair.taken.drafts
    pair.link.go_to(pair.place.model_copy(update={"address": "", "why": "unloaded"}))
    assert pair.taken.why[-1] == "unloaded" and pair.link.use.state == "none"


class Liar:
    """A proposer that answers each question with what it is given."""

    def __init__(self, pair: Pair, answer: Callable[[Propose], bytes]) -> None:
        self.link, self.answer = Link("router"), answer
        self.address = self.link.bind(f"ipc://{pair.folder}/liar")
        pair.reactor.watch(self.link, self.received)

    def received(self, frames: list[bytes]) -> None:
        peer, message = frames[0], unpack_to_runner(frames[-1])
        answers: list[Any] = []
        match message:
            case Hello():
                answers.append(Welcome(InstanceId("i2"), 1, Boot("b"), 15))
            case Ping():
                answers.append(Pong(Boot("b"), 0, False))
            case Attach():
                answers.append(Attached(100))
            case Propose():
                self.link.send(peer, self.answer(message))
            case _:
                assert isinstance(message, Withdraw)
        for answer in answers:
            self.link.send(peer, pack_to_gateway(answer))


def proposed(number: int, *tokens: int) -> FromProposer:
    return Proposed(number, pack_ids(tokens), 1, 1, 0)


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: b"garbage",
        lambda question: pack_to_gateway(proposed(question.number, 1, 2)),
        lambda question: pack_to_gateway(Proposed(question.number, b"abc", 1, 1, 0)),
        lambda question: pack_to_gateway(proposed(question.number, *range(1000))),
    ],
)
def test_a_malformed_draft_ends_the_connection_and_nothing_else(
    pair: Pair, answer: Callable[[Propose], bytes]
) -> None:
    liar = Liar(pair, answer)
    attached(pair, address=liar.address)
    pair.ask(1)
    pair.until(lambda: pair.link.use.reason)
    assert pair.link.use.reason == "protocol" and not pair.taken.drafts
    assert pair.taken.why[-1] == pair.link.use.why
    pair.reactor.hang_up(liar.link)


def test_an_unasked_draft_is_ignored(pair: Pair) -> None:
    liar = Liar(pair, lambda question: pack_to_gateway(proposed(question.number + 5, 1)))
    attached(pair, address=liar.address)
    pair.ask(1)
    pair.until(lambda: pair.reactor.turn(0.05) is None)
    assert not pair.taken.drafts and pair.link.use.state == "ready"
    pair.reactor.hang_up(liar.link)


def test_an_embedder_makes_no_drafts(pair: Pair) -> None:
    sent: list[FromProposer] = []
    NoProposals(lambda _peer, message: sent.append(message)).take(
        b"p", Attach(ModelId("small"), 1, "same"), 0.0
    )
    (refusal,) = sent
    assert isinstance(refusal, ProposalRefused) and refusal.refusal.reason == "unsupported"
    assert unpack_ids(pack_ids((1,))) == (1,)
