"""Which prompts another node computes, and what happens when it does not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId, NodeId, RequestId
from bus.wire.instances import Instance
from bus.wire.messages.readings import LinkReading
from bus.wire.messages.requests import (
    GenerationRequest,
    PromptCost,
    PromptQuestion,
    TokensPrompt,
    Usage,
)
from bus.wire.messages.tokens import Cancel, Failed, Finished, PromptAnswer, Submit, TokenDelta
from gateway.requests.request import ClientRequest
from gateway.requests.splitting import SPLIT_TOKENS, Offer, PhaseSplits, PrefillPlan, choose_prefill
from gateway.requests.splitting.errand import Errand
from gateway.requests.splitting.splits import COST_S
from gateway.runners.resuming import Resuming
from gateway.runners.versions import submit_for
from gateway.view.counters import Counters
from tests.gateway.requests.test_routing import instance

HERE, THERE = NodeId("n1"), NodeId("n2")
SECONDS = st.floats(0, 100, allow_nan=False)


def cost(missing: int = 2000, seconds: float = 5.0, **fields: Any) -> PromptCost:
    facts = {"tokens": 2000, "missing": missing, "prefill_s": seconds, "kv_bytes": 10**7}
    return PromptCost(**{**facts, "how": "alike", **fields})


def offer(name: str = "i2", speed: float = 1e8, **fields: Any) -> Offer:
    return Offer(InstanceId(name), THERE, cost(**fields), speed)


costs = st.builds(
    cost,
    missing=st.integers(0, 2000),
    seconds=SECONDS,
    busy_s=SECONDS,
    kv_bytes=st.integers(0, 10**10),
    how=st.sampled_from(("alike", "other", "")),
    saved=st.integers(0, 2000),
    tokens=st.sampled_from((2000, 1990)),
)
offers = st.builds(
    Offer, st.sampled_from(("a", "b", "c")), st.just(THERE), costs, st.sampled_from((0.0, 1e6, 1e9))
)


@given(costs, st.lists(offers, max_size=4), st.booleans())
def test_only_a_long_prompt_is_split_and_only_to_a_node_that_computes_alike(
    here: PromptCost, others: list[Offer], is_auto: bool
) -> None:
    plan = choose_prefill(here, others, is_auto=is_auto)
    if isinstance(plan, str):
        assert plan
        return
    assert here.missing >= SPLIT_TOKENS and plan.offer in others and plan.limit_s > 0
    there = plan.offer.cost
    assert there.how == here.how != "" and there.tokens == here.tokens
    if is_auto:
        copying_s = plan.offer.copying_s
        assert copying_s is not None and there.prefill_s > 0
        assert plan.offer.computing_s + copying_s < here.busy_s + here.prefill_s


@given(costs, st.lists(offers, max_size=4))
def test_what_auto_chooses_a_name_would_choose_too(here: PromptCost, others: list[Offer]) -> None:
    if isinstance(choose_prefill(here, others, is_auto=True), PrefillPlan):
        named = choose_prefill(here, others)
        assert isinstance(named, PrefillPlan) or "copying" in named


@given(st.integers(0, 1023))
def test_a_short_prompt_stays_where_it_is(missing: int) -> None:
    assert f"{missing} tokens" in str(choose_prefill(cost(missing=missing), [offer()]))


@pytest.mark.parametrize(
    ("there", "is_auto", "why"),
    [
        ({"seconds": 1.0}, True, ""),
        ({"seconds": 4.5}, True, "would take"),
        ({"seconds": 1.0, "busy_s": 9.0}, True, "would take"),
        ({"seconds": 0.0}, True, "not measured"),
        ({"seconds": 1.0, "speed": 0.0}, True, "not measured"),
        ({"seconds": 9.0}, False, ""),
        ({"seconds": 0.0, "speed": 0.0}, False, ""),
        ({"seconds": 1.0, "speed": 1e6}, False, "copying would take 10.10 s"),
        ({"how": "other"}, False, "another way"),
        ({"saved": 1999}, False, "already"),
    ],
)
def test_a_named_node_is_used_unless_copying_is_dearer_and_auto_only_for_a_gain(
    there: dict[str, Any], is_auto: bool, why: str
) -> None:
    plan = choose_prefill(cost(), [offer(**there)], is_auto=is_auto)
    assert isinstance(plan, PrefillPlan) if not why else why in str(plan)


@dataclass
class Clock:
    """A reactor in virtual time."""

    at: float = 100.0
    ticks: list[Callable[[], None]] = field(default_factory=list)

    def now(self) -> float:
        return self.at

    def every(self, _seconds: float, call: Callable[[], None]) -> Any:
        self.ticks.append(call)
        return SimpleNamespace(cancel=lambda: self.ticks.remove(call))

    def later_by(self, seconds: float) -> None:
        self.at += seconds
        for call in list(self.ticks):
            call()


@dataclass
class Runners:
    """What is asked of runners. `refuses`: instances that refuse at once."""

    asked: list[tuple[InstanceId, GenerationRequest, Errand]] = field(default_factory=list)
    cancelled: list[RequestId] = field(default_factory=list)
    suspects: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)

    def submit(
        self, at: Instance, request: GenerationRequest, errand: Errand, **_terms: Any
    ) -> None:
        if at.instance in self.refuses:
            errand.refused(Refusal(reason="unsupported", message="too old"))
            return
        self.asked.append((at.instance, request, errand))

    def ask(self, message: Cancel) -> bool:
        self.cancelled.append(message.request_id)
        return True

    def forget(self, request_id: RequestId) -> None: ...

    def suspect(self, name: InstanceId) -> bool:
        return name in self.suspects

    def answer(self, at: str, wants: str, answer: PromptCost) -> None:
        name, request, errand = next(
            asked for asked in self.asked if asked[0] == at and asked[1].question.wants == wants
        )
        self.asked.remove((name, request, errand))
        prompt = PromptAnswer((), answer.model_dump_json(), 4096)
        token = TokenDelta(request.request_id, 0, 0, "text", "x", 1)
        errand.arrived([token], 0.0)
        errand.arrived([Finished(request.request_id, 1, Usage(), prompt)], 0.0)


class Site:
    """Instance `i1` on node n1 and `i2` on node n2 (named two)."""

    def __init__(self, prefill_on: str = "two") -> None:
        self.clock, self.runners = Clock(), Runners()
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.submitted: list[ClientRequest] = []
        shard = instance("i2").shards[0]
        self.first = instance("i1")
        self.second = replace_shard(instance("i2"), shard.model_copy(update={"node": THERE}))
        ready = [self.first, self.second]

        def choose(_wire: object, away: Collection[object], _affinity: str) -> Instance | None:
            return next((i for i in ready if (i.instance, i.generation) not in away), None)

        def log(text: str, **facts: Any) -> None:
            self.lines.append((text, facts))

        link = {"peer": THERE, "host": "127.0.0.1", "latency_s": 0.001, "bytes_per_s": 1e9}
        links = LinkReading.model_validate({"node": HERE, "links": [link], "measured_at_s": 1.0})
        readings = SimpleNamespace(
            cards=lambda _now: [SimpleNamespace(node=THERE, name="two", ips=())],
            links=lambda _now: [links],
        )
        self.card = SimpleNamespace(prefill_on=prefill_on)
        catalog = SimpleNamespace(
            ready=lambda _model: ready,
            cards=lambda: {ModelId("m"): self.card},
            choose=choose,
            readings=readings,
        )
        bus = SimpleNamespace(reactor=self.clock, log=SimpleNamespace(info=log, warning=log))
        self.counters = Counters()
        self.splits = PhaseSplits(
            cast(Any, bus),
            cast(Any, catalog),
            cast(Any, self.runners),
            self.counters,
            self.submitted.append,
        )

    def request(self, tokens: int = 2000, **fields: Any) -> ClientRequest:
        prompt = TokensPrompt(token_ids=(1,) * tokens)
        wire = GenerationRequest(
            request_id=RequestId("r"), model=ModelId("m"), prompt=prompt, **fields
        )
        made = {"wire": wire, "request_id": wire.request_id, "model": wire.model, "sharer": ()}
        state = {"so_far": None, "was_displaced": False, "excluded": set(), "affinity": ""}
        return cast(Any, SimpleNamespace(**made, **state, resuming=Resuming()))

    def begun(self, **fields: Any) -> ClientRequest:
        request = self.request(**fields)
        assert self.splits.begin(request, self.first) and request.request_id in self.splits
        return request

    def outcomes(self) -> Mapping[Any, int]:
        return dict(self.counters.drain()["m"].splits)

    def why(self) -> str:
        return self.lines[-1][1]["why"]


def replace_shard(made: Instance, shard: Any) -> Instance:
    return made.model_copy(update={"shards": (shard,)})


def test_the_other_node_computes_the_prompt_and_the_first_writes_the_answer() -> None:
    site = Site()
    request = site.begun(n=2, max_tokens=50, stop=("x",), key_id="key", top_logprobs=3)
    assert [at for at, *_ in site.runners.asked] == ["i1", "i2"]
    site.runners.answer("i2", "cost", cost(seconds=1.0))
    site.runners.answer("i1", "cost", cost())
    ((at, computed, _),) = site.runners.asked
    assert at == "i2" and computed.question and computed.question.wants == "kv"
    assert (computed.n, computed.max_tokens, computed.key_id) == (1, 1, "key")
    assert computed.prompt == request.wire.prompt and computed.request_id != request.request_id
    site.runners.answer("i2", "kv", cost(missing=0, saved=1999))
    assert site.submitted == [request] and request.request_id not in site.splits
    assert site.outcomes() == {"elsewhere": 1}
    assert site.splits.take(request) is site.first
    assert site.splits.take(request) is None, "then any instance may get it"
    assert not site.splits.begin(request, site.first), "it is tried once"
    assert not site.splits.stop(request.request_id) and not site.runners.asked


def test_the_answer_is_not_written_on_the_node_that_computes_prompts() -> None:
    site = Site(prefill_on=THERE)
    request = site.request()
    assert site.splits.begin(request, site.second)
    assert sorted(at for at, *_ in site.runners.asked) == ["i1", "i2"]
    site.runners.answer("i1", "cost", cost(missing=10))
    site.runners.answer("i2", "cost", cost())
    assert site.splits.take(request) is site.first and "10 tokens" in site.why()
    assert site.outcomes() == {"own": 1}


@pytest.mark.parametrize(
    "fields", [{"tokens": 1023}, {"prompt_logprobs": 0, "max_tokens": 0}, {"prefill_on": ""}]
)
def test_other_requests_are_submitted_at_once(fields: dict[str, Any]) -> None:
    site = Site(fields.pop("prefill_on", "two"))
    assert not site.splits.begin(site.request(**fields), site.first)
    assert not site.runners.asked and not site.lines


def test_a_name_without_a_ready_instance_is_logged() -> None:
    site = Site("three")
    assert not site.splits.begin(site.request(), site.first)
    assert "prefill_on = three" in site.why() and site.outcomes() == {"own": 1}


def failed(site: Site, how: str) -> None:
    """Have the other node fail after the costs were said."""
    name, request, errand = site.runners.asked[-1]
    match how:
        case "dies":
            errand.arrived([Failed(request.request_id, 1, "runner_lost", "gone", Usage(), {})], 0)
        case "is silent":
            site.runners.suspects.add(name)
            site.clock.later_by(0.25)
        case "is late":
            site.clock.later_by(60.0)
        case "is preempted":
            errand.displaced(None, 0.0)
        case "never accepts":
            errand.lost_unaccepted()
        case _:
            site.runners.answer("i2", "kv", cost(missing=0, saved=0))


WHYS = {
    "dies": "gone",
    "is silent": "does not answer",
    "is late": "the other node took more than",
    "is preempted": "more urgent",
    "never accepts": "does not answer",
    "writes nothing": "not written",
}


@pytest.mark.parametrize("how", WHYS)
def test_after_a_failure_the_own_runner_computes_the_prompt(how: str) -> None:
    site = Site()
    request = site.begun()
    site.runners.answer("i1", "cost", cost())
    site.runners.answer("i2", "cost", cost(seconds=1.0))
    failed(site, how)
    assert site.submitted == [request] and WHYS[how] in site.why()
    assert site.outcomes() == {"failed": 1}
    site.clock.later_by(100.0)
    assert len(site.submitted) == 1 and not site.clock.ticks


@pytest.mark.parametrize("silent", ["i1", "i2"])
def test_costs_are_waited_for_a_while_only(silent: str) -> None:
    site = Site()
    request = site.begun()
    site.runners.answer("i2" if silent == "i1" else "i1", "cost", cost())
    site.clock.later_by(COST_S / 2)
    assert not site.submitted
    site.clock.later_by(COST_S / 2)
    assert site.submitted == [request] and len(site.runners.cancelled) == 1


@pytest.mark.parametrize("old", ["i1", "i2"])
def test_runners_of_earlier_versions_compute_as_before(old: str) -> None:
    site = Site()
    site.runners.refuses.add(old)
    request = site.begun() if old == "i2" else site.request()
    if old == "i2":
        site.runners.answer("i1", "cost", cost())
    else:
        assert site.splits.begin(request, site.first)
    assert site.submitted == [request] and request.request_id not in site.splits


@pytest.mark.parametrize("wants", ["cost", "kv"])
def test_earlier_versions_are_not_asked_about_costs(wants: Any) -> None:
    question = PromptQuestion(wants=wants)
    prompt = TokensPrompt(token_ids=(1,))
    request = GenerationRequest(
        request_id=RequestId("r"), model=ModelId("m"), prompt=prompt, question=question
    )
    submit = Submit(request, 1, 64, 1000)
    refusal = submit_for(submit, 15)
    assert isinstance(refusal, Refusal)
    assert "cannot compute prompts for other nodes" in refusal.message
    assert submit_for(submit, 16) == submit


def test_a_cancelled_request_is_not_submitted() -> None:
    site = Site()
    request = site.begun()
    errands = [errand for *_, errand in site.runners.asked]
    assert site.splits.stop(request.request_id) and len(site.runners.cancelled) == 2
    for errand in errands:
        errand.lost_unaccepted()
    site.clock.later_by(60.0)
    assert not site.submitted
