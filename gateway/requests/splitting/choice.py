"""Decides whether a prompt is computed on another node, and on which (decision 0109).

Pure. The runner that will write the answer and the runners that could compute the prompt say what
the prompt would cost them. KV can only be used if both compute alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bus.wire.ids import InstanceId, NodeId
from bus.wire.messages.requests import PromptCost

SPLIT_TOKENS = 1024
"""Fewer missing tokens are never computed on another node."""
GAIN = 0.8
"""With `auto`, computing elsewhere and copying must take at most this part of computing here."""
COPY_S = 0.1
"""Seconds that writing and copying a file take apart from its bytes."""
LATE_FACTOR, LATE_S = 4.0, 10.0
"""The other node is given up after `LATE_FACTOR` times its expected seconds, plus `LATE_S`. With
`auto`, at the latest after the seconds that the request's node would take, plus `LATE_S`."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A runner on another node that could compute a prompt. `bytes_per_s`: the measured speed of
    the link to it; 0: not measured."""

    instance: InstanceId
    node: NodeId
    cost: PromptCost
    bytes_per_s: float = 0.0

    @property
    def copying_s(self) -> float | None:
        """Return the expected seconds of copying the KV; None if the link is not measured."""
        return COPY_S + self.cost.kv_bytes / self.bytes_per_s if self.bytes_per_s > 0 else None

    @property
    def computing_s(self) -> float:
        """Return the expected seconds until the prompt is computed there."""
        return self.cost.busy_s + self.cost.prefill_s


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """The prompt is computed by `offer`, and given up after `limit_s`."""

    offer: Offer
    limit_s: float


def choose_prefill(
    here: PromptCost, offers: Iterable[Offer], *, is_auto: bool = False
) -> PrefillPlan | str:
    """Return where the prompt is computed, or why it is not computed elsewhere. `here`: its cost at
    the runner that writes the answer. `is_auto`: only if all costs are measured, and computing
    elsewhere and copying is expected to take less time."""
    if here.missing < SPLIT_TOKENS:
        return f"{here.missing} tokens are missing; the least is {SPLIT_TOKENS}"
    if not here.how:
        return "the request's node exchanges no KV of this prompt with other nodes"
    here_s = here.busy_s + here.prefill_s
    plans: list[tuple[float, PrefillPlan]] = []
    why = "no instance on another node answered what the prompt would cost there"
    for offer in offers:
        cost, copying_s = offer.cost, offer.copying_s
        if (cost.how, cost.tokens) != (here.how, here.tokens):
            why = f"node {offer.node} computes the prompt in another way"
            continue
        if cost.saved > cost.tokens - SPLIT_TOKENS:
            return f"node {offer.node} already has its KV on disk"
        is_measured = here.prefill_s > 0 and cost.prefill_s > 0 and copying_s is not None
        if is_auto and not is_measured:
            why = f"the speed of node {offer.node}, its link or the request's node is not measured"
            continue
        total_s = offer.computing_s + (copying_s or 0.0)
        if is_auto and total_s > GAIN * here_s:
            why = f"node {offer.node} would take {total_s:.2f} s, the request's node {here_s:.2f} s"
            continue
        if copying_s is not None and 0 < here.prefill_s <= copying_s:
            why = f"copying would take {copying_s:.2f} s, computing {here.prefill_s:.2f} s"
            continue
        late_s = LATE_FACTOR * offer.computing_s
        limit_s = LATE_S + (min(late_s, here_s) if is_auto else late_s)
        plans.append((total_s, PrefillPlan(offer, limit_s)))
    return min(plans, key=lambda plan: plan[0])[1] if plans else why
