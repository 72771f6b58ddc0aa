"""What another user of this machine may do at a node whose HTTP asks for no key: row by row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import httpx
import pytest

from gateway.access import hashed
from gateway.http.openapi import PARAMETER, Route
from gateway.http.routes import ROUTES
from tests.harness import stranger_http
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, gateway_testbed
from tests.harness.http_clients import body

NOBODY = 65534
TOKEN = "sk-of-the-owner"
PASSED_ON = {"via": "1.1 a-proxy"}
"""What a proxy passed on is nobody's own, whoever runs the proxy."""
SAME_SITE = {"sec-fetch-site": "same-site"}
"""What a browser says of another port of the machine."""
TOLD_TO_THE_OWNER = ("/state", "/apikeys", "/queue", "/requests/recent", "/v1/traces")
NAMES = {"answer_id": "resp_x", "part": "1"}

Question = tuple[str, str, dict[str, str], str | None]
Answers = list[tuple[int, str]]
Ask = Callable[[GatewayTestbed, Sequence[Question]], Answers]


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    with gateway_testbed(owner_key=hashed(TOKEN)) as made:
        made.runner()
        yield made


def as_another_user(made: GatewayTestbed, questions: Sequence[Question]) -> Answers:
    """Ask as another user of this machine."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    told = subprocess.run(
        [sys.executable, "-I", stranger_http.__file__, str(NOBODY), str(made.port)],
        input="".join(json.dumps(one) + "\n" for one in questions),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return [tuple(json.loads(line)) for line in told.stdout.splitlines()]


def over_a_proxy(made: GatewayTestbed, questions: Sequence[Question]) -> Answers:
    """Ask as this user's proxy would, for a client of its own."""
    return asked(made, [(*one[:2], {**one[2], **PASSED_ON}, one[3]) for one in questions])


def asked(made: GatewayTestbed, questions: Sequence[Question]) -> Answers:
    """Ask as this user, who runs the gateway; of a stream nothing but its head is read."""
    found: Answers = []
    with httpx.Client(base_url=made.url, timeout=20) as client:
        for method, path, headers, content in questions:
            with client.stream(method, path, headers=headers, content=content) as answer:
                has_end = "content-length" in answer.headers
                found.append((answer.status_code, answer.read().decode() if has_end else ""))
    return found


def question(route: Route) -> Question:
    """Ask at a row, with a body that says nothing, so that nothing comes of it."""
    path = PARAMETER.sub(lambda found: NAMES.get(found[1], "x"), route.path)
    return route.method, path, {}, None if route.method == "GET" else "{"


STRANGERS = pytest.mark.parametrize("ask", [as_another_user, over_a_proxy])


@STRANGERS
def test_row_by_row_a_stranger_has_what_the_table_says(testbed: GatewayTestbed, ask: Ask) -> None:
    answers = ask(testbed, [question(route) for route in ROUTES])
    for route, (status, told) in zip(ROUTES, answers, strict=True):
        is_refused = status == 403 and "is only for the user who runs this node" in told
        assert is_refused == (route.who != "anyone"), (route.method, route.path, status, told)
    assert {route.who for route in ROUTES} == {"anyone", "pulls", "owner"}


def test_what_asks_models_is_open_and_all_else_is_the_owner_s() -> None:
    for route in ROUTES:
        assert (route.who == "anyone") == (route.scope == "inference" or route.path == "/metrics")


@STRANGERS
def test_a_stranger_neither_mints_a_key_nor_moves_the_node(
    testbed: GatewayTestbed, ask: Ask
) -> None:
    sent: list[Question] = [
        ("POST", "/apikeys", {}, '{"name": "mine", "scope": "admin"}'),
        ("POST", "/apikeys", {"authorization": "Bearer nothing"}, '{"name": "mine"}'),
        ("PUT", "/settings", {}, '{"set": {"http_port": 1}}'),
        ("PUT", "/ollama/api/tags", {}, "{}"),
        ("HEAD", "/state", {}, None),
        ("GET", "/v1/jobs?all=true", {}, None),
    ]
    assert [status for status, _ in ask(testbed, sent)] == [403] * len(sent)
    assert testbed.do(lambda: dict(testbed.holder.state.api_keys)) == {}
    assert ask(testbed, [("POST", "/v1/chat/completions", {}, json.dumps(body("tokens=1")))])


def test_the_owner_needs_no_step_more(testbed: GatewayTestbed) -> None:
    own_page = {"origin": testbed.url, "sec-fetch-site": "same-origin"}
    for headers in ({}, own_page, {**PASSED_ON, "authorization": f"Bearer {TOKEN}"}):
        answers = asked(testbed, [("GET", path, headers, None) for path in TOLD_TO_THE_OWNER])
        assert [status for status, _ in answers] == [200] * len(TOLD_TO_THE_OWNER), answers


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://localhost"},
        {"origin": "app://obsidian.md", "sec-fetch-site": "cross-site"},
        SAME_SITE,
    ],
)
def test_a_page_of_another_port_is_not_the_owner_in_the_owner_s_browser(
    testbed: GatewayTestbed, headers: dict[str, str]
) -> None:
    keys = ("POST", "/apikeys", headers, '{"name": "mine"}')
    models = ("GET", "/v1/models", headers, None)
    assert [status for status, _ in asked(testbed, [keys, models])] == [403, 200]


@STRANGERS
def test_what_one_user_keeps_another_does_not_find(testbed: GatewayTestbed, ask: Ask) -> None:
    url, stored = f"{testbed.url}/v1/chat/completions", {"store": True}
    mine = httpx.post(url, json=body("tokens=1", **stored), timeout=20).json()["id"]
    at = f"/v1/chat/completions/{mine}"
    assert httpx.get(testbed.url + at).status_code == 200
    listed: Question = ("GET", "/v1/chat/completions", {}, None)
    one = json.dumps(body("tokens=1", **stored))
    found, nothing, made, theirs = ask(
        testbed,
        [("GET", at, {}, None), listed, ("POST", listed[1], {}, one), listed],
    )
    assert found[0] == 404 and json.loads(nothing[1])["data"] == []
    kept = json.loads(made[1])["id"]
    assert [row["id"] for row in json.loads(theirs[1])["data"]] == [kept], "their own"
    assert httpx.get(f"{url}/{kept}").status_code == 404


def test_pulls_as_ollama_does_them_are_opened_by_one_setting_and_nothing_else_is(
    testbed: GatewayTestbed,
) -> None:
    pull: Question = ("POST", "/api/pull", {}, json.dumps({"model": MODEL, "stream": False}))
    [(status, told)] = over_a_proxy(testbed, [pull])
    assert status == 403
    assert "`http_anyone_pulls = true`" in json.loads(told)["error"]
    opened = [one for one in ROUTES if one.is_open_to_all(True) and not one.is_open_to_all(False)]
    assert [(one.method, one.path) for one in opened] == [("POST", "/api/pull")]
