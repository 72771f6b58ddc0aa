"""Whom a candidate dials."""

from __future__ import annotations

from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeerReading, PeersReading, PeerStatus
from master.consensus.candidate_links import candidates_in


def peer(name: str, status: PeerStatus, host: str, port: int = 9) -> PeerReading:
    return PeerReading(node=NodeId(name), name=name, status=status, host=host, candidate_port=port)


def test_only_who_can_answer_is_dialled() -> None:
    reading = PeersReading(
        node=NodeId("me"),
        peers=(
            peer("linked", "linked", "10.0.0.2"),
            peer("silent", "silent", "10.0.0.3"),
            peer("has called, and was not called back yet", "silent", ""),
            peer("gone", "left", "10.0.0.4"),
            peer("nobody may join", "linked", "10.0.0.5", 0),
        ),
    )
    assert candidates_in(reading) == {
        "linked": ("tcp://10.0.0.2:9",),
        "silent": ("tcp://10.0.0.3:9",),
    }
