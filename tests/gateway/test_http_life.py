"""The gateway's processes: their start, their end, their keys, their siblings."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from bus.process.clock import now
from bus.process.ports import addresses_of
from bus.wire.errors import Unavailable
from gateway.access import hashed
from gateway.cli.node.processes import port_problem
from gateway.http.listener import open_listeners
from tests.harness.gateway_testbed import (
    ROOT,
    GatewayTestbed,
    eventually,
    gateway_testbed,
)
from tests.harness.http_clients import Reader, answered, body, cancels_of, chat, ready, send_raw
from tests.harness.ports import free_port

pytestmark = pytest.mark.slow


def test_sigterm_lets_a_short_stream_finish_and_ends_a_long_one_in_words() -> None:
    with gateway_testbed(drain_s=5.0) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        short = Reader(made, "tokens=100 every_ms=10")
        long = Reader(made, "tokens=1000000 every_ms=10")
        short.wait_lines(3)
        long.wait_lines(3)
        made.gateway.send_signal(signal.SIGTERM)
        short.wait_end(20)
        long.wait_end(20)
        assert short.error is None and len(short.text.split()) == 100
        assert long.error is not None and long.error["code"] == "model_unavailable"
        assert made.gateway.wait(10) == 0
        name = long.chunks[0]["id"].removeprefix("chatcmpl-")
        assert eventually(lambda: cancels_of(made.runners[0], name), 5, "the cancel")


def test_a_killed_http_process_is_replaced() -> None:
    with gateway_testbed() as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        connection = send_raw(made, "tokens=1000000 every_ms=10", stream=True)
        eventually(lambda: made.runners[0].heard("submit"), 5, "the request arrives")
        psutil.Process(made.gateway.pid).children()[0].kill()
        eventually(made.is_ready, 10, "a new process serves")
        connection.close()
        eventually(lambda: ready(made), 10, "it knows the instance")
        assert chat(made, "tokens=3").status_code == 200


def test_http_processes_end_with_their_master_and_say_so() -> None:
    with gateway_testbed() as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        worker = psutil.Process(made.gateway.pid).children()[0]
        reader = Reader(made, "tokens=1000000 every_ms=10")
        reader.wait_lines(3)
        killed_at = now()
        made.gateway.kill()
        reader.wait_end(10)
        assert reader.error is not None and reader.error["code"] == "model_unavailable"
        eventually(lambda: not worker.is_running(), 10, "the HTTP process is gone")
        print(f"gone {now() - killed_at:.2f} s after its master")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_who_asks_without_end_hears_no_error_of_processes_that_end(how: signal.Signals) -> None:
    statuses: list[int] = []
    asking = threading.Event()

    def ask_on_one_connection(url: str) -> None:
        with httpx.Client(base_url=url, timeout=10) as client:
            try:
                while True:
                    statuses.append(client.get("/state").status_code)
                    asking.set()
            except httpx.TransportError:
                return

    with gateway_testbed() as made, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask_on_one_connection, made.url) for _ in range(4)]
        assert asking.wait(20), "they ask"
        master = psutil.Process(made.gateway.pid)
        family = master.children()
        made.gateway.send_signal(how)
        for one in asked:
            one.result(30)
        assert not psutil.wait_procs(family, 20)[1], "each process has ended"
    assert set(statuses) == {200}


def test_a_taken_port_names_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"port {port}.*pid {os.getpid()}"):
            open_listeners("127.0.0.1", port, retry_s=0.3)


def test_a_port_that_is_taken_at_one_loopback_alone_is_told_with_its_address() -> None:
    if "::1" not in addresses_of("localhost"):
        pytest.skip("this machine has no IPv6")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        told = rf"port {port} on ::1 is in use by .*pid {os.getpid()}.*http_host = \"127.0.0.1\""
        with pytest.raises(Unavailable, match=told):
            open_listeners("localhost", port, retry_s=0.0)
        trouble = port_problem("localhost", port)
        assert trouble is not None and "at ::1" in trouble and str(os.getpid()) in trouble
        (alone,) = open_listeners("127.0.0.1", port, retry_s=0.0)
        alone.close()


def test_the_gateway_starts_from_its_settings_alone_and_says_what_is_missing() -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as home:
        port = free_port()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SHOAL_HOME": home,
            "SHOAL_HTTP_PORT": str(port),
        }
        command = [sys.executable, "-P", "-m", "gateway"]
        process = subprocess.Popen(command, cwd=home, env=environment, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            health = eventually(lambda: answered(f"{url}/health"), 20, "it answers")
            assert health.json()["status"] == "degraded"
            assert answered(f"{url}/livez") is not None
            assert httpx.get(f"{url}/readyz").status_code == 503
            early = httpx.post(f"{url}/v1/chat/completions", json=body("x"), timeout=20)
            assert early.status_code == 503
            assert "shoal status" in early.json()["error"]["message"]
            again = subprocess.run(command, cwd=home, env=environment, timeout=20, check=False)
            assert again.returncode == 3
        finally:
            process.terminate()
            assert process.wait(15) == 0


def test_a_gateway_that_others_reach_asks_for_a_key_before_there_is_one() -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as home:
        port = free_port()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SHOAL_HOME": home,
            "SHOAL_HTTP_PORT": str(port),
            "SHOAL_HTTP_HOST": "0.0.0.0",
        }
        command = [sys.executable, "-P", "-m", "gateway"]
        process = subprocess.Popen(command, cwd=home, env=environment, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            eventually(lambda: answered(f"{url}/livez"), 20, "it answers")
            for path in ("/state", "/v1/models", "/metrics", "/apikeys"):
                assert httpx.get(url + path).status_code == 401, path
            assert set(httpx.get(f"{url}/health").json()) == {"status"}
            token = Path(home, "state", "http-token").read_text().strip()
            owner = {"Authorization": f"Bearer {token}"}
            assert httpx.get(f"{url}/state", headers=owner).status_code == 200
        finally:
            process.terminate()
            assert process.wait(15) == 0


def test_keys_are_asked_for_in_the_words_of_the_dialect() -> None:
    with gateway_testbed(keys=[hashed("sk-one"), hashed("sk-two")]) as made:
        url = f"{made.url}/v1/models"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url).json()["error"]["code"] == "invalid_api_key"
        assert isinstance(httpx.get(f"{made.url}/api/tags").json()["error"], str)
        wrong = httpx.get(url, headers={"authorization": "Bearer sk-three"})
        assert wrong.status_code == 401
        for headers in ({"authorization": "Bearer sk-one"}, {"x-api-key": "sk-two"}):
            assert httpx.get(url, headers=headers).status_code == 200
        assert httpx.get(f"{made.url}/health").status_code == 200


def cancelled_dozen(made: GatewayTestbed) -> set[str]:
    """Twelve streams, listed and cancelled by whichever process is asked; returns which processes
    had them."""
    readers = [Reader(made, "tokens=1000000 every_ms=10") for _ in range(12)]
    for reader in readers:
        reader.wait_lines(3)
    names = [reader.chunks[0]["id"] for reader in readers]
    assert len(httpx.get(f"{made.url}/queue").json()["requests"]) == 12
    for name in names:
        assert httpx.post(f"{made.url}/v1/cancel/{name}").status_code == 200
    for reader in readers:
        reader.wait_end(15)
    return {name.split("-")[3] for name in names}


def test_two_http_processes_share_cancels_lists_and_counts() -> None:
    with gateway_testbed(processes=2) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        asked, took = 0, set[str]()
        while took != {"h0", "h1"}:
            # Which process takes a connection is the kernel's choice, so one dozen may go to one.
            asked += 12
            assert asked <= 120, f"all went to {took}"
            took = cancelled_dozen(made)

        def counted() -> float:
            text = httpx.get(f"{made.url}/metrics").text
            rows = [r for r in text.splitlines() if r.startswith("shoal_requests_total")]
            return float(rows[0].rpartition(" ")[2]) if rows else 0.0

        # a request is counted when it is over, perhaps after its client has heard all of it
        eventually(lambda: counted() >= asked, 10, f"{asked} requests are counted")
        assert counted() == asked
