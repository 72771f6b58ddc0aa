"""Who may come in."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bus.wire.errors import ConfigError
from conf.settings import hash_key
from gateway.http.auth import (
    check_exposure,
    client_address,
    hashed,
    host_allowed,
    is_known_key,
    is_loopback,
    offered_key,
    origin_allowed,
)


def test_a_key_is_known_by_its_hash_alone() -> None:
    kept = (hashed("sk-one"), hashed("sk-two"))
    assert is_known_key("sk-two", kept)
    assert not is_known_key("sk-three", kept)
    assert not is_known_key(kept[0], kept)
    assert not is_known_key("", ())
    assert hashed("sk-one") == hash_key("sk-one"), "the settings keep keys in the same form"


def test_a_key_comes_as_bearer_or_in_its_own_header() -> None:
    assert offered_key("Bearer  abc ", None) == "abc"
    assert offered_key("bearer abc", "other") == "abc"
    assert offered_key("Basic abc", "other") == "other"
    assert offered_key("Bearer ", None) is None
    assert offered_key(None, None) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8", "a.localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    check_exposure(host, ())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "node.example"])
def test_beyond_loopback_a_key_is_required(host: str) -> None:
    with pytest.raises(ConfigError, match="api_keys"):
        check_exposure(host, ())
    check_exposure(host, (hashed("k"),))


@pytest.mark.parametrize(
    ("peer", "forwarded", "proxies", "counts"),
    [
        ("10.0.0.9", None, (), "10.0.0.9"),
        ("10.0.0.9", "1.2.3.4", (), "10.0.0.9"),
        ("10.0.0.9", "1.2.3.4", ("10.0.0.9",), "1.2.3.4"),
        ("10.0.0.9", "6.6.6.6, 1.2.3.4", ("10.0.0.0/8",), "1.2.3.4"),
        ("10.0.0.9", "1.2.3.4, 10.0.0.8", ("10.0.0.0/8",), "1.2.3.4"),
        ("10.0.0.9", "10.0.0.7, 10.0.0.8", ("10.0.0.0/8",), "10.0.0.7"),
        ("10.0.0.9", "1.2.3.4, unknown", ("10.0.0.0/8",), "10.0.0.9"),
        ("10.0.0.9", "", ("10.0.0.0/8",), "10.0.0.9"),
        ("::ffff:10.0.0.9", "1.2.3.4", ("10.0.0.0/8",), "1.2.3.4"),
        ("2001:db8:1:2:3:4:5:6", None, (), "2001:db8:1:2::/64"),
        ("::1", "2001:db8::7", ("::1",), "2001:db8::/64"),
        ("", None, (), ""),
    ],
)
def test_the_address_that_counts_is_the_last_that_no_proxy_of_ours_has(
    peer: str, forwarded: str | None, proxies: tuple[str, ...], counts: str
) -> None:
    assert client_address(peer, forwarded, proxies) == counts


@given(st.text(), st.text())
def test_whatever_is_forwarded_by_a_stranger_counts_for_nothing(peer: str, said: str) -> None:
    assert client_address("10.0.0.9", said, ("10.0.0.1",)) == "10.0.0.9"
    client_address(peer, said, ("10.0.0.1", "::/0"))


def test_a_host_name_that_strangers_dns_points_here_is_refused() -> None:
    for host in ("localhost:52415", "127.0.0.1", "[::1]:8080", "192.168.1.5:52415", None):
        assert host_allowed(host, ())
    assert not host_allowed("evil.example:52415", ())
    assert not host_allowed("localhost.evil.example", ())
    assert host_allowed("Studio.local:52415", ("studio.local",))


def test_pages_of_this_machine_and_listed_ones_may_call() -> None:
    host = "192.168.1.5:52415"
    for origin in (None, "http://localhost:3000", "http://127.0.0.1", f"http://{host}"):
        assert origin_allowed(origin, host, ())
    for origin in ("https://evil.example", "null", "file://", "http://192.168.1.6"):
        assert not origin_allowed(origin, host, ())
    assert origin_allowed("https://chat.example", host, ("https://chat.example",))


@given(st.text(max_size=40))
@example("[::1")
@example("]")
@example("[zz]:1")
@example("localhost:99999999")
def test_any_text_for_a_host_or_origin_is_judged_and_raises_nothing(text: str) -> None:
    assert host_allowed(text, ()) in (True, False)
    assert origin_allowed(text, text, ()) in (True, False)
    assert origin_allowed(f"http://{text}", text, ()) in (True, False)
