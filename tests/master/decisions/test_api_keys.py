"""Commands about API keys, and what the state makes of them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bus.replica.state import ClusterState, apply
from bus.wire.api_keys import MAX_API_KEYS, ApiKey, KeyLimits
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId
from bus.wire.messages.commands import AddApiKey, RemoveApiKey, RotateApiKey
from bus.wire.messages.events import ApiKeyAdded, ApiKeyChanged, ApiKeyRemoved, Event
from master.decisions.api_keys import decide_api_key

C = CommandId("c")
Body = ApiKeyAdded | ApiKeyChanged | ApiKeyRemoved


def hash_of(secret: str) -> str:
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def key(name: str, number: int = 1, **fields: Any) -> ApiKey:
    made = {"id": f"key-{number:08x}", "hash": hash_of(f"secret {number}"), "scope": "inference"}
    return ApiKey(**{**made, "name": name, **fields})


def add(state: ClusterState, made: ApiKey) -> Body | Refusal:
    return decide_api_key(AddApiKey(command_id=C, key=made), state)


def after(state: ClusterState, body: Body | Refusal) -> ClusterState:
    assert not isinstance(body, Refusal), body
    return apply(state, Event(term=1, index=state.index + 1, at_s=0.0, body=body))


def having(*keys: ApiKey) -> ClusterState:
    state = ClusterState()
    for one in keys:
        state = after(state, add(state, one))
    return state


def test_a_key_is_added_rotated_and_removed_under_one_id() -> None:
    limits = KeyLimits(requests_per_minute=3)
    state = having(key("a", limits=limits))
    rotate = RotateApiKey(command_id=C, key_id="key-00000001", hash=hash_of("new"), old_until_s=9.0)
    state = after(state, decide_api_key(rotate, state))
    [rotated] = state.api_keys.values()
    assert (rotated.id, rotated.name, rotated.limits) == ("key-00000001", "a", limits)
    assert (rotated.hash, rotated.old_hash) == (hash_of("new"), hash_of("secret 1"))
    assert rotated.old_until_s == 9.0
    again = RotateApiKey(command_id=C, key_id="key-00000001", hash=hash_of("newer"))
    [rotated] = after(state, decide_api_key(again, state)).api_keys.values()
    assert (rotated.hash, rotated.old_hash) == (hash_of("newer"), None), "without grace none stays"
    remove = RemoveApiKey(command_id=C, key_id="key-00000001")
    state = after(state, decide_api_key(remove, state))
    assert state.api_keys == {}
    for command in (remove, again):
        refused = decide_api_key(command, state)
        assert isinstance(refused, Refusal) and refused.reason == "unknown_key"


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (key("A", 2), "conflict"),
        (key("b", 1), "conflict"),
        (key("b", 2, hash=hash_of("secret 1")), "conflict"),
        (key("", 2), "bad_request"),
        (key("two words", 2), "bad_request"),
        (key("key-0000000f", 2), "bad_request"),
        (key("n" * 65, 2), "bad_request"),
        (key("b", 2, id="b"), "bad_request"),
    ],
)
def test_what_cannot_be_told_from_another_key_is_refused(made: ApiKey, reason: str) -> None:
    refused = add(having(key("a")), made)
    assert isinstance(refused, Refusal) and refused.reason == reason


def test_a_secret_that_is_still_taken_from_before_a_rotation_is_no_others() -> None:
    state = having(key("a"), key("b", 2))
    rotate = RotateApiKey(command_id=C, key_id="key-00000001", hash=hash_of("new"), old_until_s=9.0)
    state = after(state, decide_api_key(rotate, state))
    taken = RotateApiKey(command_id=C, key_id="key-00000002", hash=hash_of("secret 1"))
    for found in (
        add(state, key("c", 3, hash=hash_of("secret 1"))),
        decide_api_key(taken, state),
    ):
        assert isinstance(found, Refusal) and found.reason == "conflict"


def test_they_are_bounded() -> None:
    state = having(*(key(f"n{n}", n) for n in range(MAX_API_KEYS)))
    refused = add(state, key("one-more", MAX_API_KEYS))
    assert isinstance(refused, Refusal) and refused.reason == "conflict"


@given(st.text(max_size=80))
def test_no_text_but_a_hash_can_stand_where_one_is_kept(text: str) -> None:
    """So no secret comes into the log by a mistake of whoever makes a key."""
    for build in (
        lambda: key("a", hash=text),
        lambda: key("a", old_hash=text),
        lambda: RotateApiKey(command_id=C, key_id="key-00000001", hash=text),
    ):
        with pytest.raises(ValidationError):
            build()


def test_a_change_of_a_key_that_is_gone_changes_nothing() -> None:
    assert after(ClusterState(), ApiKeyChanged(key=key("a"))).api_keys == {}


def test_a_state_of_before_there_were_any_is_read() -> None:
    then = ClusterState().model_dump(exclude={"api_keys"})
    assert ClusterState.model_validate(then) == ClusterState()
