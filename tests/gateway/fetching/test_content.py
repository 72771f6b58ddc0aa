"""What comes is unpacked within bounds, and read in letters that cost no more than its length."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fetching.content import (
    MOST_RATIO,
    PageBody,
    check_type,
    known_charset,
    read_type,
    text_of,
)
from gateway.fetching.places import Places, shares
from gateway.fetching.policy import READ_TYPES
from gateway.fetching.refusals import FetchRefused

RAW = zlib.compressobj(wbits=-15)
PACKED = {
    "gzip": gzip.compress(b"words " * 1000),
    "deflate": zlib.compress(b"words " * 1000),
    "": b"words " * 1000,
}


@given(
    st.sampled_from(list(PACKED)), st.lists(st.integers(1, 400), max_size=8), st.integers(1, 9000)
)
def test_a_body_is_what_was_packed_however_it_comes(
    encoding: str, cuts: list[int], largest: int
) -> None:
    body, packed = PageBody(encoding or None, largest), PACKED[encoding]
    for cut in [*cuts, len(packed)]:
        if not body.truncated:
            body.add(packed[:cut])
        packed = packed[cut:]
    assert body.read() == (b"words " * 1000)[:largest]
    assert body.truncated == (largest < 6000)


def test_deflate_without_its_header_is_read_too() -> None:
    body = PageBody("deflate", 10_000)
    body.add(RAW.compress(b"words " * 100) + RAW.flush())
    assert body.read() == b"words " * 100


def test_a_bomb_ends_at_its_ratio_and_holds_no_more_than_the_largest() -> None:
    packed = gzip.compress(b"\0" * (64 << 20), 9)
    body = PageBody("gzip", 1 << 30)
    with pytest.raises(FetchRefused) as refused:
        body.add(packed[: len(packed) // 2])
    assert refused.value.rule == "unpacked"
    small = PageBody("gzip", 1 << 20)
    small.add(packed)
    assert small.truncated and len(small.read()) == 1 << 20
    assert MOST_RATIO < 1000


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress"])
def test_what_was_not_asked_for_is_not_unpacked(encoding: str) -> None:
    with pytest.raises(FetchRefused) as refused:
        PageBody(encoding, 100)
    assert refused.value.rule == "encoding"


def test_what_is_not_packed_as_it_says_is_refused() -> None:
    with pytest.raises(FetchRefused) as refused:
        PageBody("gzip", 100).add(b"plain")
    assert refused.value.rule == "encoding"


@pytest.mark.parametrize("name", ["punycode", "idna", "unicode_escape", "rot13", "hex", "bz2",
                                  "undefined", "utf-7", "zlib", "no-such", "", "\0"])  # fmt: skip
def test_a_codec_that_is_no_character_set_is_none(name: str) -> None:
    assert known_charset(name) is None


@pytest.mark.parametrize("name", ["utf-8", "UTF8", "latin-1", "windows-1252", "shift_jis", "gb2312",
                                  "big5", "euc-kr", "koi8-r", "iso-8859-15", "ascii"])  # fmt: skip
def test_the_character_sets_of_pages_are_known(name: str) -> None:
    assert known_charset(name)


@pytest.mark.parametrize(
    ("header", "taken"),
    [
        ("text/html; charset=utf-8", True), ("TEXT/Plain", True), ("application/json", True),
        ("application/ld+json", True), ("image/svg+xml", False), ("image/png", False),
        ("application/octet-stream", False), ("application/pdf", False), (None, False),
        ("nonsense", True),  # as RFC 2045 has it, what is no type is text/plain
    ],
)  # fmt: skip
def test_a_type_is_read_that_has_text(header: str | None, taken: bool) -> None:
    found = read_type(header)
    if taken:
        check_type(found, READ_TYPES)
    else:
        with pytest.raises(FetchRefused):
            check_type(found, READ_TYPES)


@given(st.binary(max_size=200), st.sampled_from([None, "utf-8", "utf-16", "shift_jis", "gb18030"]))
def test_any_bytes_are_text(body: bytes, charset: str | None) -> None:
    text_of(body, charset).encode("utf-8", "surrogatepass")


def test_a_byte_order_mark_says_more_than_a_header() -> None:
    assert text_of("\ufeffé".encode(), "latin-1") == "é"
    assert text_of("é".encode("utf-16"), "latin-1") == "é"


def test_places_are_so_many_and_so_many_for_one() -> None:
    places = Places(3, 2)
    with places.take("a"), places.take("a"):
        with pytest.raises(FetchRefused), places.take("a"):
            pass
        with places.take("b"):
            with pytest.raises(FetchRefused) as refused, places.take("c"):
                pass
            assert refused.value.rule == "busy"
        with places.take("c"):
            pass
    with places.take("a"):
        pass


@given(st.integers(1, 64), st.integers(1, 64))
def test_the_shares_of_processes_are_no_more_than_all_where_there_are_enough(
    at_once: int, processes: int
) -> None:
    most, of_one = shares(at_once, processes)
    assert 1 <= of_one <= most and (most * processes <= at_once or most == 1)
