"""What could be read in two ways is no URL here; what is taken is read as others read it."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.fetching.refusals import FetchRefused
from gateway.fetching.url import MOST_CHARACTERS, FetchUrl, read_redirect, read_url

REFUSED = {
    "http://user@example.org/": "credentials",
    "http://user:secret@example.org/": "credentials",
    "http://example.org@127.0.0.1/": "credentials",
    "http://@example.org/": "credentials",
    "ftp://example.org/": "scheme",
    "file:///etc/passwd": "scheme",
    "gopher://127.0.0.1:6379/_INFO": "scheme",
    "javascript:alert(1)": "scheme",
    "data:text/html,x": "scheme",
    "unix:///run/docker.sock": "scheme",
    "view-source:http://example.org/": "scheme",
    "example.org": "url",
    "example.org/path": "url",
    "//example.org/": "url",
    "/etc/passwd": "url",
    "http:example.org": "url",
    "http:/example.org": "url",
    "": "url",
    "http://exa mple.org/": "url",
    " http://example.org/": "url",
    "http://example.org/\r\nHost: other": "url",
    "http://example.org/a\tb": "url",
    "http://example.org/\x00": "url",
    "http://example.org\\@127.0.0.1/": "url",
    "http:\\\\127.0.0.1/": "url",
    "http://example.org/\u2028": "url",
    "http://example.org/\ud800": "url",
    f"http://example.org/{'a' * MOST_CHARACTERS}": "url",
    "http://": "host",
    "http:///path": "host",
    "http://?q": "host",
    "http://:80/": "host",
    "http://example.org./": "host",
    "http://127.0.0.1./": "host",
    "http://example..org/": "host",
    "http://.example.org/": "host",
    "http://-example.org/": "host",
    "http://exa%6dple.org/": "host",
    "http://127.0.0.1%2f@example.org/": "credentials",
    "http://2130706433/": "host",
    "http://017700000001/": "host",
    "http://0x7f000001/": "host",
    "http://0x7f.0.0.1/": "host",
    "http://0x7f.1/": "host",
    "http://0177.1/": "host",
    "http://0177.0.0.1/": "host",
    "http://127.1/": "host",
    "http://127.0.1/": "host",
    "http://127.0.0.01/": "host",
    "http://127.0.0.256/": "host",
    "http://127.0.0.0x1/": "host",
    "http://0/": "host",
    "http://0x/": "host",
    "http://1.2.3.4.5/": "host",
    "http://example.127/": "host",
    "http://１２７.0.0.1/": "host",
    "http://127。0。0。1/": "host",
    "http://ⓛocalhost/": "host",
    "http://exa\u00admple.org/": "host",
    "http://ex\u200dample.org/": "host",
    "http://xn--a/": "host",
    "http://[::1/": "host",
    "http://[::1]x/": "host",
    "http://[::1%25eth0]/": "host",
    "http://[fe80::1%eth0]/": "host",
    "http://[127.0.0.1]/": "host",
    "http://[::ffff:127.0.0.1.1]/": "host",
    "http://::1/": "host",
    "http://[]/": "host",
    "http://exam[ple].org/": "host",
    "http://a<b>.org/": "host",
    f"http://{'a' * 64}.org/": "host",
    f"http://{'a.' * 127}org/": "host",
    "http://example.org:/": "port",
    "http://example.org:0/": "port",
    "http://example.org:65536/": "port",
    "http://example.org:080/": "port",
    "http://example.org:+80/": "port",
    "http://example.org:８０/": "port",
    "http://example.org:80x/": "port",
    "http://[::1]:/": "port",
}
READ = {
    "http://example.org": "http://example.org/",
    "HTTP://EXAMPLE.ORG:80/A?B#c": "http://example.org/A?B",
    "https://example.org:443?q=1": "https://example.org/?q=1",
    "https://example.org:8443/": "https://example.org:8443/",
    "http://example.org/?u=http://user@host/": "http://example.org/?u=http://user@host/",
    "http://example.org/a|b{c}\"<d>'é": "http://example.org/a%7Cb%7Bc%7D%22%3Cd%3E'%C3%A9",
    "http://example.org/%zz%41": "http://example.org/%zz%41",
    "http://bücher.example/": "http://xn--bcher-kva.example/",
    "http://BÜCHER.example/": "http://xn--bcher-kva.example/",
    "http://xn--bcher-kva.example/": "http://xn--bcher-kva.example/",
    "http://a_b.example.org/": "http://a_b.example.org/",
    "http://127.0.0.1:8080/x": "http://127.0.0.1:8080/x",
    "http://[0:0:0:0:0:0:0:1]:80/": "http://[::1]/",
    "http://[::FFFF:7F00:1]/": "http://[::ffff:127.0.0.1]/",
    "http://0x7f.example/": "http://0x7f.example/",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(FetchRefused) as refused:
        read_url(text)
    assert refused.value.rule == REFUSED[text]


@pytest.mark.parametrize("text", READ)
def test_what_is_taken_has_one_usual_form_which_is_read_the_same(text: str) -> None:
    url = read_url(text)
    usual = READ[text].replace("[::ffff:127.0.0.1]", f"[{ipaddress.ip_address('::ffff:7f00:1')}]")
    assert url.text == usual
    assert read_url(url.text) == url


MARKS = st.sampled_from([*"abzAZ019.:/?#@[]%\\_- xé。\t\x00", "http://", "127.0.0.1", "0x7f"])
TEXTS = st.builds("http://{}".format, st.lists(MARKS, max_size=12).map("".join))


HOSTED = st.builds(
    "http://a{}z.example{}{}".format,
    st.sampled_from(["", "b", "b-c", "b.c", "B9", "..", "-", "b_c"]),
    st.sampled_from(["", "", ":80", ":8080"]),
    st.just("") | st.text("abzA09/?#@&=-_.", max_size=4).map("/{}".format),
)


@given(HOSTED | HOSTED.map(str.swapcase) | HOSTED.map(str.upper) | TEXTS | st.text())
@example("http://a#@b/")
@example("http://a?@b/")
@example("http://[::1]:80/")
def test_what_is_taken_other_parsers_read_alike(text: str) -> None:
    try:
        url = read_url(text)
    except FetchRefused:
        return
    for one in (text, url.text):
        other = urlsplit(one)
        assert other.scheme == url.scheme
        assert other.username is None and other.password is None
        assert (other.port or {"http": 80, "https": 443}[url.scheme]) == url.port
        if (other.hostname or "").isascii() and url.address is None:
            assert other.hostname == url.host
    assert url.text.isascii() and not set(url.text) & set(" \t\r\n\\")
    try:
        address = ipaddress.ip_address(url.host)
    except ValueError:
        assert url.address is None and not url.host.split(".")[-1].isdigit()
    else:
        assert url.address == address and str(address) == url.host


@given(st.ip_addresses())
def test_every_address_in_its_usual_form_is_read_as_that_address(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    host = f"[{address}]" if address.version == 6 else str(address)
    assert read_url(f"http://{host}:81/").address == address


@given(st.integers(0, 2**32 - 1), st.sampled_from(["{}", "0x{:x}", "0{:o}"]))
def test_no_number_is_an_address(number: int, form: str) -> None:
    with pytest.raises(FetchRefused):
        read_url(f"http://{form.format(number)}/")


BASE = FetchUrl("https", "example.org", 443, "/a/b?q")


@pytest.mark.parametrize(
    ("location", "leads_to"),
    [
        ("/c", "https://example.org/c"),
        ("c", "https://example.org/a/c"),
        ("../c", "https://example.org/c"),
        ("?r", "https://example.org/a/b?r"),
        ("//other.example/c", "https://other.example/c"),
        ("http://other.example", "http://other.example/"),
        ("/é", "https://example.org/%C3%A9"),
        ("", "https://example.org/a/b?q"),
    ],
)
def test_a_redirect_leads_where_it_says(location: str, leads_to: str) -> None:
    assert read_redirect(BASE, location).text == leads_to


@pytest.mark.parametrize(
    ("location", "rule"),
    [
        ("//user@other.example/", "credentials"),
        ("\\\\127.0.0.1/", "url"),
        ("/a\nb", "url"),
        ("file:///etc/passwd", "scheme"),
        ("//2130706433/", "host"),
        ("//[::1", "url"),
    ],
)
def test_a_redirect_is_read_as_strictly_as_what_was_asked_for(location: str, rule: str) -> None:
    with pytest.raises(FetchRefused) as refused:
        read_redirect(BASE, location)
    assert refused.value.rule == rule
