"""Cluster keys: text that people type, secrets that tell nothing of each other, three steps."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.links.cluster_key import (
    ClusterKey,
    ClusterKeys,
    derive,
    door_secret,
    hkdf,
    node_secret,
    parse_key,
    parse_keys,
    render_keys,
    ring_secret,
)
from bus.wire.errors import BadKey
from bus.wire.ids import InstanceId, NodeId

secrets = st.binary(min_size=32, max_size=32)
keys = secrets.map(ClusterKey)
OLD, NEW, THIRD = (ClusterKey(bytes([n]) * 32) for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("secret", "salt", "info", "length", "expected"),
    [
        (
            "0b" * 22,
            "000102030405060708090a0b0c",
            "f0f1f2f3f4f5f6f7f8f9",
            42,
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            "0b" * 22,
            "",
            "",
            42,
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
    ids=["case 1", "case 3"],
)
def test_hkdf_is_that_of_rfc_5869(
    secret: str, salt: str, info: str, length: int, expected: str
) -> None:
    found = hkdf(
        bytes.fromhex(secret), salt=bytes.fromhex(salt), info=bytes.fromhex(info), length=length
    )
    assert found.hex() == expected


@given(keys)
def test_a_key_is_read_as_it_is_written(key: ClusterKey) -> None:
    assert parse_key(key.text) == key
    assert re.fullmatch(r"shoal1(-[0-9A-HJKMNP-TV-Z]{8}){7}", key.text)


@given(keys, st.integers(0, 10**6))
def test_a_key_may_be_typed_as_people_type(key: ClusterKey, seed: int) -> None:
    body = key.text.removeprefix("shoal1-")
    typed = body.replace("0", "oO"[seed % 2]).replace("1", "iIlL"[seed % 4])
    for text in (body, typed, typed.lower(), f"  SHOAL1 {typed.replace('-', ' ')}\n"):
        assert parse_key(text) == key


@given(keys, st.integers(0, 55), st.sampled_from("0123456789ABCDEFGHJKMNPQRSTVWXYZ"))
def test_a_mistyped_key_is_refused_and_not_repeated(
    key: ClusterKey, place: int, other: str
) -> None:
    body = key.text.removeprefix("shoal1-").replace("-", "")
    typed = body[:place] + other + body[place + 1 :]
    if typed == body:
        return
    with pytest.raises(BadKey) as refused:
        parse_key(typed)
    assert not any(typed[at : at + 6] in str(refused.value) for at in range(50))


@given(st.text(max_size=80))
def test_other_text_is_no_key_and_breaks_nothing(text: str) -> None:
    with pytest.raises(BadKey):
        parse_key(text)


def test_a_key_shows_its_fingerprint_alone() -> None:
    shown = f"{OLD} {OLD!r} {ClusterKeys(OLD, coming=NEW)!r}"
    assert OLD.fingerprint in shown and NEW.fingerprint in shown
    assert OLD.text not in shown and OLD.secret.hex() not in shown and "x01" not in shown


@given(keys, st.text("abn01", max_size=4), st.text("abn01", max_size=4))
def test_every_use_has_a_secret_of_its_own(key: ClusterKey, one: str, other: str) -> None:
    found = [
        node_secret(key, NodeId(one)),
        node_secret(key, NodeId(one + "x")),
        door_secret(key),
        derive(key, "node", one, other),
        derive(key, "node", one + other, "x"),
        bytes.fromhex(ring_secret(ClusterKeys(key), InstanceId("i"), 1)),
        bytes.fromhex(ring_secret(ClusterKeys(key), InstanceId("i"), 2)),
        key.secret,
    ]
    assert len(set(found)) == len(found)
    assert not any(key.fingerprint in secret.hex() for secret in found)


def test_parts_of_a_use_cannot_be_shifted_into_each_other() -> None:
    assert derive(OLD, "ring", "a", "b1") != derive(OLD, "ring", "ab", "1")
    with pytest.raises(ValueError, match="NUL"):
        derive(OLD, "node", "a\0b")


def test_a_rotation_goes_through_its_steps_in_order() -> None:
    settled = ClusterKeys(OLD)
    prepared = settled.prepare(NEW)
    switched = prepared.switch()
    finished = switched.finish()
    assert [k.phase for k in (settled, prepared, switched, finished)] == [
        "settled",
        "prepared",
        "switched",
        "settled",
    ]
    assert (
        prepared.valid == (OLD, NEW) and switched.valid == (NEW, OLD) and finished.valid == (NEW,)
    )
    for wrong in (
        lambda: settled.switch(),
        lambda: settled.finish(),
        lambda: prepared.prepare(THIRD),
        lambda: prepared.finish(),
        lambda: switched.prepare(THIRD),
        lambda: switched.switch(),
        lambda: settled.prepare(OLD),
        lambda: ClusterKeys(OLD, coming=NEW, past=THIRD),
    ):
        with pytest.raises(BadKey):
            wrong()


STEPS = (
    ClusterKeys(OLD),
    ClusterKeys(OLD, coming=NEW),
    ClusterKeys(NEW, past=OLD),
    ClusterKeys(NEW),
)


@pytest.mark.parametrize("step", range(3))
def test_nodes_one_step_apart_reach_each_other(step: int) -> None:
    for client, server in (STEPS[step : step + 2], STEPS[step : step + 2][::-1]):
        assert any(k == server.current and k in server.valid for k in client.valid)
    assert STEPS[step].is_kin(STEPS[step + 1])


def test_nodes_agree_on_a_rings_secret_until_the_last_step() -> None:
    found = [ring_secret(keys, InstanceId("i"), 1) for keys in STEPS]
    assert len(set(found[:3])) == 1 and found[3] != found[2]
    assert ring_secret(None, InstanceId("i"), 1) != ring_secret(None, InstanceId("i"), 2)


@given(keys, keys, st.sampled_from(["", "coming", "past"]))
def test_a_key_file_is_read_as_it_is_written(one: ClusterKey, other: ClusterKey, name: str) -> None:
    if one == other:
        return
    written = ClusterKeys(one, **({name: other} if name else {}))
    assert parse_keys(render_keys(written)) == written
    assert parse_keys(f"\n{one.text}\n") == ClusterKeys(one)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the current key is missing"),
        (f"past {OLD.text}", "the current key is missing"),
        (f"current {OLD.text}\ncurrent {NEW.text}", "line 2"),
        (f"current {OLD.text}\ncoming {OLD.text}", "twice"),
        (f"current {OLD.text}\nfuture {NEW.text}", "line 2"),
        (f"# hm\ncurrent {OLD.text[:-1]}", "line 2"),
    ],
)
def test_a_wrong_key_file_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(BadKey, match=why) as refused:
        parse_keys(text)
    assert OLD.text[10:20] not in str(refused.value)
