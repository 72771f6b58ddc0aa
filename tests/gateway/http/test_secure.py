"""A real gateway that speaks HTTPS: its pair, what replaces it, and who comes without TLS."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import APIConnectionError, OpenAI

from bus.links.tls_files import read_served
from bus.process.clock import now
from tests.harness.certificates import TlsPairOnDisk, put, served_at
from tests.harness.gateway_testbed import MODEL, ROOT, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import Reader, chat, ready
from tests.harness.ports import free_port

pytestmark = pytest.mark.slow

TAKEN_S = 3 * 2.0
"""Two seconds are promised, and three times as much is borne."""
"""Within so long what replaces a pair serves every new connection."""


def files(pair: TlsPairOnDisk) -> list[str]:
    return [str(pair.certificate), str(pair.key)]


@contextlib.contextmanager
def secure(pair: TlsPairOnDisk, **options: Any) -> Iterator[GatewayTestbed]:
    """A gateway with this pair, whose clients trust it, and one ready instance."""
    with gateway_testbed(tls=files(pair), **options) as made:
        made.trust = pair.trust()
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        yield made


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TlsPairOnDisk:
    return TlsPairOnDisk(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def shared(pair: TlsPairOnDisk) -> Iterator[GatewayTestbed]:
    """One gateway for what leaves no trace."""
    with secure(pair, headers_s=1.0) as made:
        yield made


def said(made: GatewayTestbed, part: str) -> list[dict[str, Any]]:
    return [line for line in made.log_lines() if part in line["message"]]


def all_show(made: GatewayTestbed, pair: TlsPairOnDisk, *, connections: int = 12) -> bool:
    """Whether every one of several new connections is shown this certificate: there are several
    HTTP processes."""
    shown = {served_at(made.port).strip() for _ in range(connections)}
    return shown == {pair.certificate.read_text().strip()}


# --- clients ----------------------------------------------------------------------------------


def test_openais_client_is_answered_whole_and_streamed_where_it_trusts_the_certificate(
    shared: GatewayTestbed, pair: TlsPairOnDisk
) -> None:
    with httpx.Client(verify=pair.trust()) as http:
        client = OpenAI(base_url=f"{shared.url}/v1", api_key="none", http_client=http)
        asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "tokens=2000"}]}
        whole = client.chat.completions.create(**asked).choices[0].message.content
        pieces = client.chat.completions.create(**asked, stream=True)
        streamed = "".join(one.choices[0].delta.content or "" for one in pieces if one.choices)
    assert whole is not None and len(whole.split()) == 2000
    assert streamed == whole


def test_a_client_that_does_not_trust_the_certificate_gets_nowhere(shared: GatewayTestbed) -> None:
    client = OpenAI(base_url=f"{shared.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(APIConnectionError) as refused:
        client.models.list()
    assert "CERTIFICATE_VERIFY_FAILED" in str(refused.value.__cause__)
    lines = eventually(lambda: said(shared, "a TLS handshake failed"), 5, "a line")
    # what it says goodbye with may be lost on the way
    told = ("the client does not trust the certificate", "the client went away")
    assert lines[0]["why"].endswith(told)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_what_is_spoken_is_http_1_1_over_tls_1_2_or_later(
    shared: GatewayTestbed, pair: TlsPairOnDisk
) -> None:
    context = pair.trust()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", shared.port), 5) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as spoken,
    ):
        assert spoken.selected_alpn_protocol() == "http/1.1"
        assert spoken.version() == "TLSv1.3"
    old = pair.trust()
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", shared.port), 5) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        old.wrap_socket(plain, server_hostname="localhost")


def test_the_reference_names_the_address_at_which_it_was_asked_for(
    shared: GatewayTestbed, pair: TlsPairOnDisk
) -> None:
    document = httpx.get(f"{shared.url}/openapi.json", verify=pair.trust()).json()
    assert document["servers"] == [{"url": shared.url}]
    assert document["openapi"] == "3.1.0"


# --- who comes without TLS --------------------------------------------------------------------


def test_plain_http_is_told_that_the_port_speaks_https_and_logged_once(
    shared: GatewayTestbed,
) -> None:
    before = len(said(shared, "answered plain HTTP"))
    for _ in range(3):
        answer = httpx.post(f"http://127.0.0.1:{shared.port}/v1/chat/completions", json={"a": 1})
        assert answer.status_code == 400
        assert "this port speaks HTTPS" in answer.text
    assert before + len(said(shared, "answered plain HTTP")) == 1


def test_a_client_that_says_nothing_or_half_a_hello_is_left_at_its_deadline(
    shared: GatewayTestbed,
) -> None:
    for beginning in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"):
        with socket.create_connection(("127.0.0.1", shared.port), 5) as client:
            client.sendall(beginning)
            began = now()
            client.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                while client.recv(1000):
                    pass
            assert 0.5 < now() - began < 3.0, beginning


def test_rubbish_after_the_first_byte_ends_the_connection_and_nothing_else(
    shared: GatewayTestbed,
) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), 5) as client:
        client.sendall(b"\x16" + bytes(range(256)))
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1000):
                pass
    assert chat(shared, "tokens=2").status_code == 200


def test_handshakes_that_stall_count_as_connections(tmp_path: Path) -> None:
    pair = TlsPairOnDisk(tmp_path)
    with secure(pair, max_connections=3, headers_s=8.0) as made:
        stalled = [socket.create_connection(("127.0.0.1", made.port), 5) for _ in range(3)]
        for one in stalled:
            one.sendall(b"\x16\x03\x01")
        url = f"{made.url}/livez"

        def status() -> int:
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(url, verify=made.trust).status_code
            return 0  # with so many at once another handshake may be closed unsaid

        assert eventually(lambda: status() == 503 or status() == 0, 6, "there is no room")
        eventually(lambda: status() == 200, 24, "there is room when they have had their time")
        for one in stalled:
            one.close()


# --- another pair ------------------------------------------------------------------------------


def test_a_pair_that_is_replaced_serves_new_connections_and_disturbs_no_stream(
    tmp_path: Path,
) -> None:
    first, second = TlsPairOnDisk(tmp_path), TlsPairOnDisk(tmp_path / "other")
    with secure(first, processes=2) as made:
        reader = Reader(made, "tokens=100 every_ms=100")
        reader.wait_lines(5)
        began = now()
        first.become(second)
        eventually(lambda: all_show(made, second), TAKEN_S, "both processes show the other")
        print(f"both after {now() - began:.2f} s")
        assert reader.ended_at is None
        made.trust = second.trust()
        assert chat(made, "tokens=2").status_code == 200
        reader.wait_end(30)
        assert len(reader.text.split()) == 100
        assert reader.error is None
        eventually(lambda: said(made, "a new certificate"), 5, "it is told")
        assert len(said(made, "a new certificate")) == 1


def test_a_broken_replacement_leaves_what_serves_and_is_told_once_until_it_is_mended(
    tmp_path: Path,
) -> None:
    first, second = TlsPairOnDisk(tmp_path), TlsPairOnDisk(tmp_path / "other")
    own = first.certificate.read_text()
    with secure(first, processes=2) as made:
        put(first.certificate, second.certificate.read_text())
        trouble = eventually(lambda: read_served(made.folder).trouble, 5, "it is told")
        assert "does not belong to the certificate" in trouble
        assert read_served(made.folder).certificates == (own,)
        assert {served_at(made.port) for _ in range(12)} == {own}
        psutil.Process(made.gateway.pid).children()[0].kill()
        eventually(made.is_ready, 10, "another HTTP process takes its place")
        assert {served_at(made.port) for _ in range(12)} == {own}
        assert len(said(made, "HTTPS keeps the previous certificate")) == 1
        put(first.key, second.key.read_text())
        eventually(lambda: not read_served(made.folder).trouble, 5, "that is over")
        eventually(lambda: all_show(made, second), TAKEN_S, "both processes show the other")
        assert read_served(made.folder).certificates[0] == second.certificate.read_text()


@pytest.mark.parametrize(("days", "words"), [(-3, "expired on"), (5, "expires on")])
def test_a_certificate_at_its_end_serves_and_is_spoken_of_with_its_date(
    tmp_path: Path, days: int, words: str
) -> None:
    pair = TlsPairOnDisk(tmp_path, days=days)
    with gateway_testbed(tls=files(pair)) as made:
        answer = httpx.get(f"{made.url}/livez", verify=False)
        assert answer.status_code == 200
        eventually(lambda: said(made, words), 5, "it is told")
        (line,) = said(made, words)
        assert "the certificate of HTTPS" in line["message"] and "UTC" in line["message"]


def test_a_wrong_pair_is_refused_at_the_start_in_words(tmp_path: Path) -> None:
    one, other = TlsPairOnDisk(tmp_path / "one"), TlsPairOnDisk(tmp_path / "other")
    given = {
        "node": "n1",
        "node_name": "testbed",
        "endpoints": str(tmp_path),
        "metrics_folder": str(tmp_path / "metrics"),
        "port": free_port(),
        "tls": [str(one.certificate), str(other.key)],
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.harness.gateway_process", json.dumps(given)],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "http_tls_cert and http_tls_key: the key" in done.stderr
    assert read_served(str(tmp_path)).trouble in done.stderr
