"""The orderly shutdown of a candidate: it chooses a successor, and decides when the process may
end.

Pure: it takes timestamps and returns actions. The term is offered to a candidate that has
acknowledged all of our log. If that candidate does not take the term, the next one gets the offer.
The last action, `Left`, comes once, within `HAND_OVER_S`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.wire.ids import NodeId
from master.consensus import types
from master.consensus.candidate import Candidate
from master.consensus.types import LAPSE_S, Act


@dataclass(slots=True)
class Leaving:
    """The shutdown of a candidate. `ends_by`: the latest time at which it ends; None while no
    shutdown was requested. `heirs`: the candidates to which our term was offered, and when."""

    candidate: Candidate
    ends_by: float | None = None
    heirs: list[tuple[NodeId, float]] = field(default_factory=list[tuple[NodeId, float]])

    def begin(self, now: float) -> list[Act]:
        """Begin to shut down: take no term from now on. As the leader, send a heartbeat, so that
        the other candidates report whether they have all of our log and can take the term."""
        self.ends_by = now + types.HAND_OVER_S
        beat = [types.Beat()] if self.candidate.holding else []
        return [*self.candidate.stimulated(types.Leave(), now), *beat]

    def turn(self, now: float) -> list[Act]:
        """Return the actions that are due now; none if no shutdown was requested."""
        if self.ends_by is None:
            return []
        actions: list[Act] = []
        heir = self._heir(now) if self.candidate.holding or self.heirs else None
        if heir is not None:
            actions += self.candidate.stimulated(types.HandOn(heir), now)
        if now >= self.ends_by or self._is_done(now):
            self.ends_by = None
            actions.append(types.Left())
        return actions

    def _heir(self, now: float) -> NodeId | None:
        """Return the candidate to which our term should be offered now; None if there is none."""
        if self.heirs and now - self.heirs[-1][1] < types.HEIR_S:
            return self.heirs[-1][0]
        tried = {node for node, _ in self.heirs}
        able = [node for node in self._able(now) if node not in tried]
        if not able:
            return None
        self.heirs.append((able[0], now))
        return able[0]

    def _able(self, now: float) -> list[NodeId]:
        """Return the candidates that answer, can lead and have all of our log, best first."""
        election, index = self.candidate.election, self.candidate.state.index
        heirs = [
            seen.rank
            for node, seen in election.living.items()
            if seen.eligible
            and now - election.acked_at.get(node, -LAPSE_S) < LAPSE_S
            and self.candidate.log.acks.appended.get(node, 0) >= index
            and (node in election.electors or not election.voted)
        ]
        heirs.sort(key=lambda rank: (rank.priority, rank.node), reverse=True)
        return [rank.node for rank in heirs]

    def _is_done(self, now: float) -> bool:
        """Return whether nothing is left to wait for: another candidate leads, we did not lead, or
        no other candidate can take the term."""
        election = self.candidate.election
        if election.holder not in (None, election.me):
            return True
        if election.role != "holding":
            return not self.heirs
        return not any(
            seen.eligible and now - seen.heard_at < LAPSE_S
            for node, seen in election.living.items()
            if node in election.electors or not election.voted
        )
