"""What is dialled is what was judged: over real servers, with names that this test resolves."""

from __future__ import annotations

import asyncio
import io
import ipaddress
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bus.process.clock import now
from bus.process.logs import Log
from gateway.fetching.fetcher import Fetched, Fetcher
from gateway.fetching.policy import FetchPolicy, read_allowance
from gateway.fetching.refusals import FetchRefused
from gateway.fetching.url import Address
from tests.harness.web_pages import Pages, pages

NAMES = {
    "private.test": ["10.0.0.1"],
    "loopback.test": ["127.0.0.1"],
    "metadata.test": ["169.254.169.254"],
    "mixed.test": ["8.8.8.8", "127.0.0.1"],
    "mapped.test": ["::ffff:127.0.0.1"],
    "carrier.test": ["100.64.0.1"],
    "nowhere.test": [],
    "many.test": [f"8.8.8.{n}" for n in range(17)],
}


class Names:
    """Names of this test alone: each question takes the next of a name's answers, the last
    stays."""

    def __init__(self, **more: list[list[str]]) -> None:
        self.answers = {name: [addresses] for name, addresses in NAMES.items()}
        self.answers |= {name.replace("_", "."): answers for name, answers in more.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        self.asked.append(host)
        answers = self.answers[host]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ipaddress.ip_address(one) for one in found]


@pytest.fixture(scope="module")
def server() -> Iterator[Pages]:
    with pages() as found:
        yield found


def fetcher(*allow: str, names: Names | None = None, **more: Any) -> Fetcher:
    policy = FetchPolicy(enabled=True, allow=tuple(map(read_allowance, allow)), **more)
    return Fetcher(policy, Log(node="n1", process="test", stream=io.StringIO()), names or Names())


def fetch(asked: Fetcher, url: str) -> Fetched:
    return asyncio.run(asked.fetch(url))


def rule_of(asked: Fetcher, url: str) -> str:
    with pytest.raises(FetchRefused) as refused:
        fetch(asked, url)
    return refused.value.rule


def test_an_allowed_local_server_is_reached(server: Pages) -> None:
    page = fetch(fetcher(f"127.0.0.1:{server.port}"), f"http://127.0.0.1:{server.port}/page?a=b#c")
    assert page.status == 200 and b"Shoals" in page.body and not page.truncated
    assert page.url == f"http://127.0.0.1:{server.port}/page?a=b"
    assert page.type.is_html and page.type.charset == "utf-8"
    told = server.heard[-1]
    assert told["path"] == "/page?a=b" and told["host"] == f"127.0.0.1:{server.port}"
    assert not {"cookie", "authorization", "referer"} & set(told)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://[::1]/", "http://10.0.0.1/", "http://169.254.169.254/latest/",
        "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/", "http://0.0.0.0/", "http://[::]/", "http://100.64.0.1/",
        "http://[fe80::1]/", "http://[fd00::1]/", "http://224.0.0.1/", "http://192.0.2.1/",
        "http://private.test/", "http://loopback.test/", "http://metadata.test/",
        "http://mixed.test/", "http://mapped.test/", "http://carrier.test/",
    ],
)  # fmt: skip
def test_what_is_not_public_is_not_dialled(url: str) -> None:
    assert rule_of(fetcher("*"), url) == "address"


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("http://2130706433/", "host"), ("http://0177.1/", "host"), ("http://0x7f.1/", "host"),
        ("http://user@8.8.8.8/", "credentials"), ("gopher://8.8.8.8/", "scheme"),
        ("http://8.8.8.8:22/", "not_allowed"), ("http://nowhere.test/", "unresolved"),
        ("http://many.test/", "unresolved"),
    ],
)  # fmt: skip
def test_what_is_no_url_of_a_page_is_not_fetched(url: str, rule: str) -> None:
    assert rule_of(fetcher("*"), url) == rule


def test_a_name_that_no_entry_allows_is_not_even_asked_for() -> None:
    names = Names()
    assert rule_of(fetcher("*.example", names=names), "http://secret.test/") == "not_allowed"
    assert rule_of(fetcher("*", names=names), "http://secret.test:81/") == "not_allowed"
    off = Fetcher(FetchPolicy(), Log(node="n1", process="test", stream=io.StringIO()), names)
    assert rule_of(off, "http://secret.test/") == "disabled"
    assert names.asked == []


def test_a_name_that_is_rebound_leads_where_it_was_judged(server: Pages) -> None:
    """Only this test's resolver knows the name: a second question would find it elsewhere, or,
    asked of the system, nowhere."""
    names = Names(rebound_test=[["127.0.0.1"], ["10.0.0.1"]])
    asked = fetcher(f"rebound.test:{server.port}", names=names)
    page = fetch(asked, f"http://rebound.test:{server.port}/page")
    assert page.status == 200 and names.asked == ["rebound.test"]
    assert server.heard[-1]["host"] == f"rebound.test:{server.port}"


def test_a_name_that_is_rebound_between_redirects_is_judged_anew(server: Pages) -> None:
    port = server.port
    names = Names(rebound_test=[["127.0.0.1"], ["10.0.0.1"]])
    asked = fetcher(f"127.0.0.1:{port}", names=names)
    url = f"http://rebound.test:{port}/to?url=http://rebound.test:{port}/page"
    assert rule_of(asked, url) == "address"
    assert names.asked == ["rebound.test", "rebound.test"]


def test_the_next_address_is_tried_where_one_does_not_answer(server: Pages) -> None:
    names = Names(two_test=[["127.0.0.2", "127.0.0.1"]])
    asked = fetcher(f"two.test:{server.port}", names=names)
    assert fetch(asked, f"http://two.test:{server.port}/text").status == 200


@pytest.mark.parametrize(
    ("location", "rule"),
    [
        ("http://127.0.0.1:1/", "not_allowed"),
        ("http://127.0.0.1/", "address"),
        ("http://169.254.169.254/latest/meta-data/", "address"),
        ("http://private.test/", "address"),
        ("http://2130706433/", "host"),
        ("http://user@8.8.8.8/", "credentials"),
        ("file:///etc/passwd", "scheme"),
        ("//[::1]/", "address"),
    ],
)
def test_a_redirect_is_judged_as_the_first_url_is(server: Pages, location: str, rule: str) -> None:
    asked = fetcher("*", f"127.0.0.1:{server.port}")
    assert rule_of(asked, f"http://127.0.0.1:{server.port}/to?url={location}") == rule


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_within_what_is_allowed_is_followed(server: Pages, status: int) -> None:
    at = f"http://127.0.0.1:{server.port}"
    page = fetch(fetcher(f"127.0.0.1:{server.port}"), f"{at}/to?status={status}&url=/text")
    assert page.url == f"{at}/text" and page.body == "Fußnote".encode("latin-1")


def test_redirects_have_an_end(server: Pages) -> None:
    asked = fetcher(f"127.0.0.1:{server.port}", redirects=3)
    before = len(server.heard)
    assert rule_of(asked, f"http://127.0.0.1:{server.port}/round") == "redirects"
    assert len(server.heard) - before == 4


def test_a_gigabyte_is_cut_at_the_largest(server: Pages) -> None:
    asked = fetcher(f"127.0.0.1:{server.port}", largest_bytes=1 << 20)
    page = fetch(asked, f"http://127.0.0.1:{server.port}/gigabyte")
    assert page.truncated and len(page.body) == 1 << 20
    assert server.sent_bytes < 64 << 20, "the connection was closed, not read on"


def test_a_bomb_is_refused(server: Pages) -> None:
    asked = fetcher(f"127.0.0.1:{server.port}", largest_bytes=64 << 20)
    assert rule_of(asked, f"http://127.0.0.1:{server.port}/bomb") == "unpacked"


def test_a_packed_page_is_unpacked(server: Pages) -> None:
    page = fetch(fetcher(f"127.0.0.1:{server.port}"), f"http://127.0.0.1:{server.port}/packed")
    assert b"Shoals" in page.body


@pytest.mark.parametrize("path", ["drip", "silent"])
def test_a_page_that_takes_too_long_is_left(server: Pages, path: str) -> None:
    asked = fetcher(f"127.0.0.1:{server.port}", whole_s=0.5)
    began_at = now()
    assert rule_of(asked, f"http://127.0.0.1:{server.port}/{path}") == "late"
    assert now() - began_at < 5


@pytest.mark.parametrize("path", ["headers", "cut", "nonsense"])
def test_what_is_no_answer_is_refused(server: Pages, path: str) -> None:
    asked = fetcher(f"127.0.0.1:{server.port}")
    assert rule_of(asked, f"http://127.0.0.1:{server.port}/{path}") == "broken"


def test_what_comes_around_a_page_is_counted_too(server: Pages) -> None:
    asked = fetcher(f"127.0.0.1:{server.port}", largest_bytes=1 << 10, whole_s=10.0)
    assert rule_of(asked, f"http://127.0.0.1:{server.port}/hints") == "broken"


def test_a_type_that_is_not_read_is_not_loaded(server: Pages) -> None:
    asked = fetcher(f"127.0.0.1:{server.port}")
    url = f"http://127.0.0.1:{server.port}/kind?is=image/png"
    assert rule_of(asked, url) == "content_type"
    assert fetch(fetcher(f"127.0.0.1:{server.port}", types=("image/*",)), url).body == b"\x89PNG"


def test_a_port_at_which_nothing_listens_is_unreachable() -> None:
    with pages() as gone:
        port = gone.port
    assert rule_of(fetcher(f"127.0.0.1:{port}"), f"http://127.0.0.1:{port}/") == "unreachable"


def test_proxies_of_the_environment_are_not_asked(
    server: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    asked = fetcher(f"127.0.0.1:{server.port}")
    assert fetch(asked, f"http://127.0.0.1:{server.port}/text").status == 200


def test_tls_is_of_the_name_and_of_an_authority_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, key = tmp_path / "both.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key,
         "-out", both, "-subj", "/CN=secure.test", "-addext", "subjectAltName=DNS:secure.test"],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_text(both.read_text() + key.read_text())
    names = Names(secure_test=[["127.0.0.1"]], other_test=[["127.0.0.1"]])
    with pages(both) as server:
        allow = [f"{name}.test:{server.port}" for name in ("secure", "other")]
        url = f"https://secure.test:{server.port}/text"
        assert rule_of(fetcher(*allow, names=names), url) == "unreachable"
        monkeypatch.setenv("SSL_CERT_FILE", str(both))
        assert fetch(fetcher(*allow, names=names), url).status == 200
        assert (
            rule_of(fetcher(*allow, names=names), url.replace("secure", "other")) == "unreachable"
        )


def test_the_systems_own_resolver_is_asked_and_judged_too(server: Pages) -> None:
    log = Log(node="n1", process="test", stream=io.StringIO())
    allowed = (read_allowance(f"localhost:{server.port}"),)
    url = f"http://localhost:{server.port}/text"
    assert fetch(Fetcher(FetchPolicy(enabled=True, allow=allowed), log), url).status == 200
    public = Fetcher(FetchPolicy(enabled=True, allow=(read_allowance("*"),)), log)
    assert rule_of(public, "http://localhost/") == "address"
