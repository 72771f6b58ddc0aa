"""Public addresses alone are dialled, but for what an operator lists; some never."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.errors import ConfigError
from conf.sections import FetchSettings
from gateway.fetching.addresses import kind_of
from gateway.fetching.policy import FetchPolicy, policy_of_search, read_allowance
from gateway.fetching.refusals import FetchRefused
from gateway.fetching.url import Address, read_url

KINDS = {
    "8.8.8.8": "always", "1.1.1.1": "always", "2606:4700::1111": "always",
    "64:ff9b::808:808": "always",
    "127.0.0.1": "listed", "127.255.255.254": "listed", "::1": "listed",
    "10.0.0.1": "listed", "172.16.0.1": "listed", "172.31.255.255": "listed",
    "192.168.1.1": "listed", "169.254.1.1": "listed", "100.64.0.1": "listed",
    "198.18.0.1": "listed", "fc00::1": "listed", "fd12::1": "listed",
    "169.254.169.254": "alone", "169.254.170.2": "alone", "100.100.100.200": "alone",
    "168.63.129.16": "alone", "192.0.0.192": "alone", "fd00:ec2::254": "alone",
    "fd20:ce::254": "alone",
    "0.0.0.0": "never", "0.1.2.3": "never", "192.0.0.8": "never", "192.0.2.1": "never",
    "198.51.100.1": "never", "203.0.113.1": "never", "192.88.99.1": "never",
    "224.0.0.1": "never", "239.255.255.255": "never", "240.0.0.1": "never",
    "255.255.255.255": "never",
    "::": "never", "::7f00:1": "never", "::ffff:127.0.0.1": "never", "::ffff:8.8.8.8": "never",
    "::ffff:0:7f00:1": "never", "64:ff9b::7f00:1": "never", "64:ff9b::a9fe:a9fe": "never",
    "64:ff9b::a00:1": "never", "64:ff9b:1::808:808": "never", "2002:7f00:1::": "never",
    "2002:808:808::1": "never", "2001::1": "never", "2001:0:808:808::": "never",
    "2001:db8::1": "never", "3fff::1": "never", "fe80::1": "never", "fec0::1": "never",
    "ff02::1": "never", "100::1": "never", "2606:4700::5efe:7f00:1": "never",
    "2606:4700::200:5efe:a00:1": "never", "fe80::1%eth0": "never", "4000::1": "never",
}  # fmt: skip


@pytest.mark.parametrize("text", KINDS)
def test_each_kind_of_address_is_known(text: str) -> None:
    assert kind_of(ipaddress.ip_address(text)).opens == KINDS[text]


NAT64 = ipaddress.ip_network("64:ff9b::/96")
EDGES = [
    at
    for network in [
        *ipaddress._IPv4Constants._private_networks,  # type: ignore[attr-defined]
        *ipaddress._IPv6Constants._private_networks,  # type: ignore[attr-defined]
    ]
    for at in (network[0], network[-1])
]


PUBLIC = st.one_of(
    st.integers(11 << 24, 100 << 24).map(ipaddress.IPv4Address),
    st.integers(0x2400 << 112, 0x2C0F << 112).map(ipaddress.IPv6Address),
    st.integers(128 << 24, 169 << 24).map(lambda at: NAT64[at]),
)
"""Mostly: of the last network the private ones are within."""


@given(PUBLIC | st.ip_addresses() | st.sampled_from(EDGES))
def test_what_is_always_dialled_is_global_to_others_too(address: Address) -> None:
    if kind_of(address).opens == "always":
        if address in NAT64:
            address = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        assert address.is_global and not address.is_multicast and not address.is_reserved
        assert not address.is_loopback and not address.is_link_local and not address.is_private


def policy(*allow: str) -> FetchPolicy:
    return FetchPolicy(enabled=True, allow=tuple(map(read_allowance, allow)))


def rule_of(asked: FetchPolicy, text: str, *addresses: str, own: tuple[str, ...] = ()) -> str:
    url = read_url(text)
    found = [ipaddress.ip_address(one) for one in addresses]
    try:
        asked.check_url(url)
        asked.check_addresses(url, found, {ipaddress.ip_address(one) for one in own})
    except FetchRefused as refused:
        return refused.rule
    return "fetched"


@pytest.mark.parametrize(
    ("allow", "url", "addresses", "rule"),
    [
        (["*"], "http://a.example/", ["8.8.8.8"], "fetched"),
        (["*"], "http://a.example/", ["8.8.8.8", "10.0.0.1"], "address"),
        (["*"], "http://a.example/", ["10.0.0.1", "8.8.8.8"], "address"),
        (["*"], "http://a.example:8080/", ["8.8.8.8"], "not_allowed"),
        (["*"], "http://a.example:443/", ["8.8.8.8"], "fetched"),
        (["*:8080"], "http://a.example:8080/", ["8.8.8.8"], "fetched"),
        (["*:8080"], "http://a.example:8080/", ["10.0.0.1"], "address"),
        (["*.example"], "http://a.example/", ["8.8.8.8"], "fetched"),
        (["*.example"], "http://example/", ["8.8.8.8"], "not_allowed"),
        (["*.example"], "http://badexample/", ["8.8.8.8"], "not_allowed"),
        (["*.example"], "http://a.example/", ["10.0.0.1"], "address"),
        (["*.example:80"], "http://a.example/", ["10.0.0.1"], "address"),
        (["a.example"], "http://a.example/", ["8.8.8.8"], "fetched"),
        (["a.example"], "http://b.a.example/", ["8.8.8.8"], "not_allowed"),
        (["a.example"], "http://a.example/", ["10.0.0.1"], "address"),
        (["a.example:80"], "http://a.example/", ["10.0.0.1"], "fetched"),
        (["a.example:80"], "http://a.example/", ["169.254.169.254"], "address"),
        (["a.example:80"], "http://a.example/", ["::ffff:10.0.0.1"], "address"),
        (["10.0.0.0/8"], "http://a.example/", ["10.0.0.1"], "fetched"),
        (["10.0.0.0/8"], "http://10.0.0.1/", ["10.0.0.1"], "fetched"),
        (["10.0.0.0/8"], "http://10.0.0.1:81/", ["10.0.0.1"], "not_allowed"),
        (["10.0.0.0/8"], "http://a.example/", ["8.8.8.8"], "not_allowed"),
        (["10.0.0.0/8", "*"], "http://a.example/", ["8.8.8.8", "10.0.0.1"], "fetched"),
        (["0.0.0.0/0"], "http://a.example/", ["169.254.169.254"], "address"),
        (["0.0.0.0/0"], "http://a.example/", ["0.0.0.0"], "address"),
        (["::/0"], "http://a.example/", ["::ffff:127.0.0.1"], "address"),
        (["169.254.169.254"], "http://169.254.169.254/", ["169.254.169.254"], "fetched"),
        (["127.0.0.1:8080"], "http://127.0.0.1:8080/", ["127.0.0.1"], "fetched"),
        (["127.0.0.1:8080"], "http://127.0.0.1/", ["127.0.0.1"], "not_allowed"),
        (["127.0.0.1:8080"], "http://127.0.0.2:8080/", ["127.0.0.2"], "address"),
        (["[::1]:8080"], "http://[::1]:8080/", ["::1"], "fetched"),
        ([], "http://a.example/", ["8.8.8.8"], "not_allowed"),
    ],
)
def test_the_list_opens_what_it_says(
    allow: list[str], url: str, addresses: list[str], rule: str
) -> None:
    assert rule_of(policy(*allow), url, *addresses) == rule


def test_nothing_is_fetched_unless_that_is_switched_on() -> None:
    assert rule_of(FetchPolicy(), "http://a.example/", "8.8.8.8") == "disabled"


def test_a_public_address_of_this_machine_is_none_of_the_public_ones() -> None:
    asked = ("http://a.example/", "8.8.8.8")
    assert rule_of(policy("*"), *asked, own=("8.8.8.8",)) == "address"
    assert rule_of(policy("*", "8.8.8.8"), *asked, own=("8.8.8.8",)) == "fetched"


@given(st.ip_addresses(), st.sampled_from(["*", "a.example", "*.example", "*:80"]))
def test_no_entry_with_a_name_alone_opens_what_is_not_public(address: Address, entry: str) -> None:
    if kind_of(address).opens != "always":
        assert rule_of(policy(entry), "http://a.example/", str(address)) == "address"


GOOD = ["*", "example.org", "*.example.org", "example.org:8080", "*:8080", "10.0.0.0/8",
        "10.0.0.1", "10.0.0.1:81", "fd00::/8", "::1", "[::1]:80", "[fd00::]:80", "localhost",
        "a_b.lan"]  # fmt: skip
BAD = ["", "http://example.org", "example.org:0", "example.org:99999", "example.org/x", "a b",
       "*x.org", "a.*", "[::1", "user@host", "10.0.0.0/99"]  # fmt: skip


def settings(entry: str) -> FetchSettings:
    given: dict[str, Any] = {
        "enabled": True, "allow": [entry], "largest_bytes": 1 << 20, "whole_s": 1.0,
        "redirects": 0, "types": ["text/*"],
    }  # fmt: skip
    return FetchSettings.model_validate(given)


def test_a_search_engine_has_a_policy_of_its_host_and_port_alone() -> None:
    engine = policy_of_search("http://127.0.0.1:8888/searx")
    assert rule_of(engine, "http://127.0.0.1:8888/searx/search?q=x", "127.0.0.1") == "fetched"
    assert rule_of(engine, "http://127.0.0.1:8889/", "127.0.0.1") == "not_allowed"
    assert rule_of(engine, "http://a.example:8888/", "8.8.8.8") == "not_allowed"
    assert rule_of(policy_of_search("https://[::1]/"), "https://[::1]/search", "::1") == "fetched"
    named = policy_of_search("https://searx.example/")
    assert rule_of(named, "https://searx.example/search", "10.0.0.1") == "fetched"
    assert rule_of(named, "https://other.example/search", "8.8.8.8") == "not_allowed"
    with pytest.raises(ConfigError, match="search_url") as refused:
        policy_of_search("http://user:swordfish@searx.example/")
    assert "swordfish" not in str(refused.value)


@pytest.mark.parametrize("entry", GOOD)
def test_an_entry_that_the_settings_take_the_gateway_takes(entry: str) -> None:
    read_allowance(entry)
    assert settings(entry).allow == (entry,)


@pytest.mark.parametrize("entry", BAD)
def test_an_entry_that_says_nothing_is_refused_by_both(entry: str) -> None:
    with pytest.raises(ConfigError):
        read_allowance(entry)
    with pytest.raises(ValueError, match="is not a host"):
        settings(entry)
