"""How many drafts of a row were verified, and what they cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bus.wire.messages.requests import Drafter, DrafterCount, ProposalCost, sum_drafters
from bus.wire.proposals import sum_proposals


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """How many drafts of a row were verified, by drafter. `last` is the drafter of the last one.
    `proposals`: the cost of drafts of drafters with a network."""

    drafters: Mapping[Drafter, DrafterCount] = field(default_factory=dict[Drafter, DrafterCount])
    last: Drafter | None = None
    proposals: Mapping[Drafter, ProposalCost] = field(default_factory=dict[Drafter, ProposalCost])

    @property
    def drafts(self) -> int:
        """Return the number of drafts."""
        return sum(count[0] for count in self.drafters.values())

    @property
    def drafted(self) -> int:
        """Return how many tokens the drafts had."""
        return sum(count[1] for count in self.drafters.values())

    @property
    def accepted(self) -> int:
        """Return how many of the tokens the model accepted."""
        return sum(count[2] for count in self.drafters.values())

    def plus(
        self, drafter: Drafter, drafted: int, accepted: int, cost: ProposalCost | None = None
    ) -> DraftCounts:
        """Return the counts with one more verified draft, and what it cost."""
        costs = self.proposals if cost is None else sum_proposals((self.proposals, {drafter: cost}))
        counts = sum_drafters((self.drafters, {drafter: (1, drafted, accepted)}))
        return DraftCounts(counts, drafter, costs)

    def without(self, dropped: int) -> DraftCounts:
        """Return the counts less `dropped` accepted tokens of the last draft, which came after the
        end of the text."""
        if self.last is None or not dropped:
            return self
        drafts, drafted, accepted = self.drafters[self.last]
        less = {**self.drafters, self.last: (drafts, drafted, max(accepted - dropped, 0))}
        return replace(self, drafters=less)


NO_DRAFTS = DraftCounts()
