"""Which key a client tries with a server that refused the last one."""

from __future__ import annotations

from bus.links.security import RETRY_S, CurveKeys, Server
from bus.wire.ids import NodeId

OLD, NEW, OTHER = (CurveKeys(bytes([n]) * 32, b"p" * 32, b"s" * 32) for n in (1, 2, 3))


def server(used: CurveKeys) -> Server:
    return Server(NodeId("n1"), used, tried_at=10.0)


def test_valid_keys_are_tried_in_turn() -> None:
    later = 10.0 + RETRY_S
    assert server(NEW).other_keys([NEW, OLD], later) == OLD
    assert server(OLD).other_keys([NEW, OLD], later) == NEW


def test_one_key_is_not_changed_for_itself() -> None:
    assert server(OLD).other_keys([OLD], 99.0) is None


def test_a_key_that_is_valid_no_more_makes_way_for_the_current_one() -> None:
    assert server(OLD).other_keys([NEW], 99.0) == NEW
    assert server(OTHER).other_keys([NEW, OLD], 99.0) == NEW


def test_keys_are_not_changed_in_a_hurry() -> None:
    assert server(NEW).other_keys([NEW, OLD], 10.0 + RETRY_S / 2) is None


def test_a_secret_is_not_shown() -> None:
    assert "sss" not in repr(OLD)
