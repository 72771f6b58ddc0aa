"""Who may come in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bus.process.endpoints import Endpoints
from bus.wire.api_keys import ApiKey
from bus.wire.ids import NodeId
from conf.settings import hash_key
from gateway.access.auth import (
    Caller,
    caller_of_key,
    caller_of_run,
    client_address,
    hashed,
    host_allowed,
    is_known_key,
    is_loopback,
    offered_key,
    origin_allowed,
    page_allowed,
)
from gateway.access.key_book import KeyBook
from gateway.dialects.faults import HttpFaultRaised
from gateway.view.options import Options


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


OPTIONS = Options(NodeId("n1"), "n", Endpoints("/run"), "/run")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8", "a.localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    assert not replace(OPTIONS, host=host).asks_for_keys


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "node.example"])
def test_beyond_loopback_a_key_is_asked_for_whether_there_is_one_or_not(host: str) -> None:
    assert replace(OPTIONS, host=host).asks_for_keys
    assert replace(OPTIONS, host=host, keys=(hashed("k"),)).asks_for_keys


def known(*keys: ApiKey) -> Callable[[str], ApiKey | None]:
    book = KeyBook({one.id: one for one in keys})
    return lambda found: book.find(found, 100.0)


def test_who_asks_is_told_by_the_key_and_a_stranger_where_none_is_asked_for() -> None:
    mine = ApiKey(id="key-1", name="a", hash=hashed("sk-a"), scope="inference")
    options = replace(OPTIONS, keys=(hashed("sk-one"), hashed("sk-two")), owner_key=hashed("own"))
    for asked_for in (True, False):
        ask = partial(caller_of_key, options=options, find=known(mine), asked_for=asked_for)
        assert ask("sk-a") == Caller("inference", "key-1", of_cluster=True)
        assert ask("sk-one") == Caller("admin", hashed("sk-one")[-16:])
        assert ask("own") == Caller("admin", None)
        for strange in ("sk-b", hashed("sk-a"), "", None):
            assert ask(strange) == (None if asked_for else Caller(has_key=False))
    alone = replace(options, keys=(hashed("sk-one"),))
    assert caller_of_key("sk-one", alone, known(mine), asked_for=True) == Caller()


def test_a_job_is_run_for_who_submitted_it_as_long_as_the_key_is_there() -> None:
    mine = ApiKey(id="key-0123abcd", name="a", hash=hashed("sk-a"), scope="inference")
    run = caller_of_run(mine.id, {mine.id: mine})
    assert (run.scope, run.key_id, run.of_cluster) == ("inference", mine.id, True)
    with pytest.raises(HttpFaultRaised) as refused:
        caller_of_run(mine.id, {})
    assert refused.value.fault.status == 401
    assert caller_of_run("0123456789abcdef", {}) == Caller(key_id="0123456789abcdef")
    assert caller_of_run("", {}) == Caller()


def test_a_key_is_taken_until_it_expires_and_its_old_secret_until_its_own_time() -> None:
    key = ApiKey(
        id="key-1", name="A.b", hash=hashed("new"), scope="admin", expires_at_s=60.0,
        old_hash=hashed("old"), old_until_s=30.0,
    )  # fmt: skip
    book = KeyBook({"key-1": key})
    taken = {
        secret: [at_s for at_s in (0.0, 29.9, 30.0, 59.9, 60.0) if book.find(hashed(secret), at_s)]
        for secret in ("new", "old", "other")
    }
    assert taken == {"new": [0.0, 29.9, 30.0, 59.9], "old": [0.0, 29.9], "other": []}
    assert book.named("key-1") is book.named("a.B") is key and book.named("c") is None


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


APP_PAGES = (
    "app://obsidian.md",
    "file://",
    "tauri://localhost",
    "vscode-file://vscode-app",
    "vscode-webview://0d1c2b3a",
)


@pytest.mark.parametrize("origin", APP_PAGES)
def test_pages_of_programs_may_call_a_node_that_this_machine_alone_reaches(origin: str) -> None:
    for host in ("localhost", "127.0.0.1", "::1"):
        assert page_allowed(origin, "localhost:52415", replace(OPTIONS, host=host))
    beyond = replace(OPTIONS, host="0.0.0.0")
    assert not page_allowed(origin, "192.168.1.5:52415", beyond)
    assert page_allowed(origin, "192.168.1.5:52415", replace(beyond, origins=(origin,)))


@pytest.mark.parametrize(
    "origin", ["null", "app", "apps://x", "https://app", "chrome-extension://abc", "data://x", ""]
)
def test_what_a_site_can_give_its_own_pages_is_no_program_s(origin: str) -> None:
    assert not page_allowed(origin, "localhost:52415", OPTIONS)


@given(st.text(max_size=40))
@example("[::1")
@example("]")
@example("[zz]:1")
@example("localhost:99999999")
def test_any_text_for_a_host_or_origin_is_judged_and_raises_nothing(text: str) -> None:
    assert host_allowed(text, ()) in (True, False)
    assert origin_allowed(text, text, ()) in (True, False)
    assert origin_allowed(f"http://{text}", text, ()) in (True, False)
