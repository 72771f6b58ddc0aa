"""The simulation sees what it is for: each rule that is taken away is missed by some schedule.

Faults that many schedules do not show are part of `make prove-sim` only.
"""

from __future__ import annotations

from typing import Any

import pytest

from bus.replica.mirror import Mirror
from bus.replica.outbox import Outbox
from master.consensus import votes
from master.consensus.candidate import Candidate
from master.consensus.shell import CandidateShell
from master.log import records, replication
from master.log.journal import Journal
from master.log.replication import Acks, LogSafety
from tests.sim.cluster import PLANS, Broken, run_schedule

pytestmark = pytest.mark.slow

TRIES = 150


def caught(plan: str) -> str:
    """What the first schedule that breaks says."""
    for seed in range(TRIES):
        try:
            run_schedule(PLANS[plan], seed)
        except Broken as broken:
            return str(broken).splitlines()[0]
    raise AssertionError(f"{TRIES} schedules of {plan} saw nothing")


def test_a_voter_that_does_not_compare_logs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = votes._may_have

    def careless(known: Any, ask: Any, now: float) -> bool:
        return honest(known, ask.model_copy(update={"last_term": 10**6}), now)

    monkeypatch.setattr(votes, "_may_have", careless)
    assert "committed" in (said := caught("three-voters")) or "lost" in said


def test_an_acknowledgement_before_the_disk_has_it_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hasty(self: CandidateShell) -> None:
        self._flushing = False
        degraded = self._journal.degraded or not self._term_file.sound
        self._do(self.candidate.synced(self._timers.now(), degraded=degraded))
        self._give_answers()

    monkeypatch.setattr(CandidateShell, "_flush", hasty)
    assert "may lose" in caught("three-voters")


def test_a_journal_that_does_not_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "sync", lambda _self: None)
    assert caught("three-voters")


def test_an_answer_that_does_not_wait_for_the_majority_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hasty(self: LogSafety, index: int, waited_s: float) -> replication.Durability:
        return "majority"

    monkeypatch.setattr(LogSafety, "worth", hasty)
    assert "lost" in caught("three-voters")


@pytest.mark.proof
def test_counting_entries_of_older_terms_or_too_few_voters_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def few(self: Acks, voters: Any, me: Any) -> int:
        return max(self.appended.values(), default=0)

    monkeypatch.setattr(Acks, "committed", few)
    caught("five-voters")


def test_a_mirror_that_trusts_its_own_tail_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Mirror._follow

    def trusting(self: Mirror, counter: int, holder: Any) -> None:
        honest(self, counter, holder)
        self.in_step = self.live

    monkeypatch.setattr(Mirror, "_follow", trusting)
    assert caught("pair")


def test_an_outbox_that_forgets_what_was_once_indexed_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Outbox.seen

    def forgetful(self: Outbox, state: Any) -> None:
        self.indexed.clear()
        honest(self, state)

    monkeypatch.setattr(Outbox, "seen", forgetful)
    monkeypatch.setattr(Outbox, "_renumber", lambda self: None)
    assert caught("free")


@pytest.mark.proof
def test_changing_voters_before_a_majority_has_the_log_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Candidate, "unsettled", lambda _self, _command, _now: None)
    assert caught("voters-forgotten")


def test_taking_damage_for_a_torn_tail_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "is_torn", lambda _data, _at: True)
    assert "committed" in (said := caught("voters-that-rot")) or "lost" in said
