"""Talks to runners: lets another node compute the long prompts of some models (decision 0109).

A request of a model whose card says `prefill_on` waits here before it is submitted. Both runners
are asked what the prompt costs. If another node is to compute it, that runner writes the KV to its
disk. Then the request is submitted as usual, and its runner copies the KV like any other (decision
0106). Every wait has a deadline. After a failure the request is submitted at once, so its own
runner computes the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from bus.client import BusClient
from bus.hardware.observed_links import measured_links
from bus.links.reactor import Timer
from bus.wire.ids import InstanceId, NodeId, RequestId
from bus.wire.instances import Instance
from bus.wire.messages.requests import ChatPrompt, GenerationRequest, PromptCost, TextPrompt
from bus.wire.messages.tokens import Cancel
from gateway.requests.catalog import ModelCatalog
from gateway.requests.request import ClientRequest
from gateway.requests.splitting.choice import SPLIT_TOKENS, Offer, PrefillPlan, choose_prefill
from gateway.requests.splitting.errand import Errand, cost_question, kv_question
from gateway.runners.pool import RunnerClients
from gateway.view.counters import Counters, SplitOutcome

TICK_S = 0.25
COST_S = 2.0
"""The answers about the costs are waited for at most this long."""
MOST_OFFERS = 4
"""With `auto`, at most this many other instances are asked."""
AUTO = "auto"


@dataclass(slots=True, eq=False)
class _Split:
    """A request whose prompt may be computed elsewhere. `writer` writes the answer. `open` has the
    questions that are not answered yet, by their ids; they are waited for until `until`. `plan` is
    None while costs are asked for."""

    request: ClientRequest
    writer: Instance
    others: list[Instance]
    is_auto: bool
    began_at: float
    until: float
    open: dict[RequestId, Instance] = field(default_factory=dict[RequestId, Instance])
    costs: dict[InstanceId, PromptCost] = field(default_factory=dict[InstanceId, PromptCost])
    plan: PrefillPlan | None = None


class PhaseSplits:
    """The requests of one HTTP process whose prompts may be computed elsewhere. `go_on` submits a
    request when that is over."""

    def __init__(
        self,
        bus: BusClient,
        catalog: ModelCatalog,
        clients: RunnerClients,
        counters: Counters,
        go_on: Callable[[ClientRequest], None],
    ) -> None:
        self._reactor = bus.reactor
        self._log = bus.log
        self._catalog = catalog
        self._clients = clients
        self._counters = counters
        self._go_on = go_on
        self._splits: dict[RequestId, _Split] = {}
        self.held: dict[RequestId, tuple[InstanceId, int] | None] = {}
        """The requests that are or were held. Between that and their submission: the instance (and
        generation) that is to write the answer."""
        self._timer: Timer | None = None
        self._count = 0

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._splits

    def begin(self, request: ClientRequest, chosen: Instance) -> bool:
        """Hold a request that is about to be submitted to `chosen`, if another node should compute
        its prompt. Return whether it is held; `go_on` is then called once, unless it is stopped."""
        wire, resuming = request.wire, request.resuming
        is_plain = wire.question is None and wire.prompt_logprobs is None
        if not is_plain or prompt_size(wire) < SPLIT_TOKENS or request.request_id in self.held:
            return False
        if request.so_far is not None or resuming.deaths or request.was_displaced:
            return False
        ready = self._catalog.ready(request.model)
        card = self._catalog.cards().get(request.model) if len(ready) > 1 else None
        if card is None or not card.prefill_on:
            return False
        return self._begin(request, chosen, ready, card.prefill_on)

    def take(self, request: ClientRequest) -> Instance | None:
        """Return the instance that writes the answer of a request that was held; None if it was not
        held, or if the instance is not ready any more. Later calls return None."""
        where = self.held.get(request.request_id)
        if where is None:
            return None
        self.held[request.request_id] = None
        ready = self._catalog.ready(request.model)
        return next((i for i in ready if (i.instance, i.generation) == where), None)

    def stop(self, request_id: RequestId) -> bool:
        """Forget a request; return whether it was held."""
        self.held.pop(request_id, None)
        split = self._splits.pop(request_id, None)
        if split is not None:
            self._withdraw(split)
        return split is not None

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    # --- inside ------------------------------------------------------------------------------

    def _begin(
        self, request: ClientRequest, chosen: Instance, ready: list[Instance], where: str
    ) -> bool:
        node = None if where == AUTO else self._node_named(where)
        singles = [i for i in ready if len(i.shards) == 1 and not self._clients.suspect(i.instance)]
        others = [i for i in singles if i.shards[0].node == node or node is None]
        if chosen in others and node is not None:
            away = {(i.instance, i.generation) for i in others} | request.excluded
            chosen = self._catalog.choose(request.wire, away, request.affinity) or chosen
        others = [i for i in others if i.shards[0].node != chosen.shards[0].node][:MOST_OFFERS]
        if not others or len(chosen.shards) != 1:
            why = f"no other node with a ready instance matches prefill_on = {where}"
            self._log.info(_OWN, request=request.request_id, why=why)
            self._counters.split(request.model, "own")
            return False
        now = self._reactor.now()
        split = _Split(request, chosen, others, where == AUTO, now, now + COST_S)
        self._splits[request.request_id] = split
        self.held[request.request_id] = None
        if self._timer is None:
            self._timer = self._reactor.every(TICK_S, self._tick)
        self._ask(split, [chosen, *others], cost_question(request.wire), COST_S)
        return True

    def _node_named(self, name: str) -> NodeId:
        cards = self._catalog.readings.cards(self._reactor.now())
        return next((card.node for card in cards if name == card.name), NodeId(name))

    def _ask(
        self, split: _Split, instances: list[Instance], question: GenerationRequest, limit_s: float
    ) -> None:
        """Send a question to instances. An instance that refuses answers at once."""
        request = split.request
        names: list[RequestId] = []
        for instance in instances:
            self._count += 1
            names.append(RequestId(f"{request.request_id}.{self._count:x}"))
            split.open[names[-1]] = instance
        for name, instance in zip(names, instances, strict=True):
            if name in split.open:
                self._clients.submit(
                    instance,
                    question.model_copy(update={"request_id": name}),
                    Errand(partial(self._answered, split, name)),
                    remaining_ms=int(1000 * limit_s),
                    sharer=request.sharer,
                )

    def _answered(self, split: _Split, name: RequestId, answer: PromptCost | str) -> None:
        instance = split.open.pop(name, None)
        self._clients.forget(name)
        if instance is None or split.request.request_id not in self._splits:
            return
        if isinstance(answer, PromptCost):
            split.costs[instance.instance] = answer
        elif split.plan is not None or instance is split.writer:
            self._end(split, answer)
            return
        if split.plan is not None:
            is_saved = (
                isinstance(answer, PromptCost) and answer.tokens - answer.saved < SPLIT_TOKENS
            )
            self._end(split, "" if is_saved else "the KV was not written to the other node's disk")
        elif not split.open:
            self._decide(split)

    def _decide(self, split: _Split) -> None:
        here = split.costs.get(split.writer.instance)
        if here is None:
            self._end(split, f"its own runner did not answer within {COST_S:g} s")
            return
        speeds = self._speeds(split.writer.shards[0].node)
        offers = [
            Offer(
                i.instance, node := i.shards[0].node, split.costs[i.instance], speeds.get(node, 0)
            )
            for i in split.others
            if i.instance in split.costs
        ]
        plan = choose_prefill(here, offers, is_auto=split.is_auto)
        if isinstance(plan, str):
            self._end(split, plan)
            return
        split.plan = plan
        split.until = self._reactor.now() + plan.limit_s
        at = next(i for i in split.others if i.instance == plan.offer.instance)
        self._ask(split, [at], kv_question(split.request.wire), plan.limit_s)

    def _speeds(self, node: NodeId) -> dict[NodeId, float]:
        """Return the measured bytes per second between a node and others, in either direction."""
        now, speeds = self._reactor.now(), dict[NodeId, float]()
        addresses = {card.node: card.ips for card in self._catalog.readings.cards(now)}
        for reading in self._catalog.readings.links(now):
            for peer, cost in measured_links(reading, addresses).items():
                if node in (reading.node, peer):
                    other = peer if reading.node == node else reading.node
                    speeds[other] = max(speeds.get(other, 0.0), cost.bytes_per_s)
        return speeds

    def _tick(self) -> None:
        now = self._reactor.now()
        for split in list(self._splits.values()):
            if split.plan is None and now >= split.until:
                self._withdraw(split)
                self._decide(split)
            elif split.plan is not None and now >= split.until:
                self._end(split, f"the other node took more than {split.plan.limit_s:.1f} s")
            elif split.plan is not None and self._clients.suspect(split.plan.offer.instance):
                self._end(split, "the runner on the other node does not answer")
        if not self._splits and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, split: _Split, why: str) -> None:
        """Submit the request. `why`: why its own runner computes the prompt; empty: the other node
        has computed it."""
        request, plan = split.request, split.plan
        self._withdraw(split)
        del self._splits[request.request_id]
        self.held[request.request_id] = (split.writer.instance, split.writer.generation)
        facts: dict[str, str | int | float] = {"request": request.request_id}
        if plan is not None:
            facts |= {"node": plan.offer.node, "tokens": plan.offer.cost.tokens}
            facts["seconds"] = round(self._reactor.now() - split.began_at, 3)
        outcome: SplitOutcome = "elsewhere"
        if why and plan is not None:
            outcome = "failed"
            self._log.warning(_OWN, why=why, **facts)
        elif why:
            outcome = "own"
            self._log.info(_OWN, why=why, **facts)
        else:
            self._log.info("another node has computed a prompt", **facts)
        self._counters.split(request.model, outcome)
        self._go_on(request)

    def _withdraw(self, split: _Split) -> None:
        """Cancel the questions of a request that are not answered."""
        names, split.open = list(split.open), {}
        for name in names:
            self._clients.ask(Cancel(name, "shutdown"))
            self._clients.forget(name)


_OWN = "a prompt is computed by its own runner"


def prompt_size(request: GenerationRequest) -> int:
    """Return about how many characters, or token ids, a prompt has. It rarely has more tokens."""
    prompt = request.prompt
    before = len(request.history or ())
    if isinstance(prompt, ChatPrompt):
        parts = (part for message in prompt.messages for part in message.parts)
        return before + sum(len(part.text) for part in parts if part.kind == "text")
    if isinstance(prompt, TextPrompt):
        return len(prompt.text)
    return before + len(prompt.token_ids) if prompt.kind == "tokens" else 0
