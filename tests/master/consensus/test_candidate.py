"""What a candidate makes of the files that it starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.replica.state import ClusterState
from bus.wire.ids import NodeId
from master.consensus.candidate import Candidate, CandidateSettings
from master.consensus.candidate_log import CandidateLog
from master.consensus.types import PersistentState

BEGAN = PersistentState(7, began=True)
THREE = (NodeId("a"), NodeId("b"), NodeId("c"))


@pytest.mark.parametrize(
    ("stored", "index", "voters", "lost"),
    [
        (BEGAN, 0, THREE, True),
        (BEGAN, 1, THREE, False),
        (PersistentState(), 0, THREE, False),
        (PersistentState(garbled=True), 1, THREE, True),
        (BEGAN, 0, THREE[:2], False),
        (BEGAN, 0, (), False),
    ],
    ids=["empty", "one entry", "new", "unreadable", "of two voters", "of none"],
)
def test_a_voter_whose_files_lack_what_it_said_to_have_does_not_vote_until_it_is_mended(
    stored: PersistentState, index: int, voters: tuple[NodeId, ...], lost: bool
) -> None:
    settings = CandidateSettings(Path("/journal"), Path("/term"), voters=voters)
    read = (ClusterState(index=index), [])
    candidate = Candidate.from_disk(NodeId("a"), stored, read, settings, degraded=False)
    assert (candidate.election.lost, candidate.election.eligible) == (lost, not lost)


@pytest.mark.parametrize(("index", "is_live"), [(0, False), (1, True)])
def test_a_log_with_an_entry_is_live_as_soon_as_it_is_read(index: int, is_live: bool) -> None:
    assert CandidateLog.from_disk(ClusterState(index=index), []).mirror.live is is_live
