"""The tools over HTTP: pages opened, read and found; each refusal with its rule."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from gateway.fetching import FetchRule
from gateway.http.resources.tools.web import STATUSES
from tests.harness.gateway_testbed import GatewayTestbed, eventually, gateway_testbed
from tests.harness.web_pages import PAGE, Pages, pages

PRINTED = Path(__file__).parents[3] / "docs/operations/http-api.md"


@pytest.fixture(scope="module")
def web() -> Iterator[Pages]:
    with pages() as found:
        yield found


@pytest.fixture(scope="module")
def made(web: Pages) -> Iterator[GatewayTestbed]:
    at = f"127.0.0.1:{web.port}"
    with gateway_testbed(
        fetch_enabled=True, fetch_allow=["*", at], fetch_bytes=1 << 20, fetch_s=3.0,
        fetch_types=["text/*", "application/json"], search="searxng", search_url=f"http://{at}/",
        log_level="debug",
    ) as found:  # fmt: skip
        yield found


@pytest.fixture(scope="module")
def plain() -> Iterator[GatewayTestbed]:
    """A gateway as it is when nobody says otherwise."""
    with gateway_testbed() as found:
        yield found


def ask(made: GatewayTestbed, tool: str, **asked: Any) -> httpx.Response:
    return httpx.post(f"{made.url}/v1/tools/{tool}", json=asked, timeout=30)


def refused(answer: httpx.Response) -> tuple[int, str]:
    """The status and the rule of a refusal, in OpenAI's envelope."""
    error = answer.json()["error"]
    assert error["code"] == "fetch_refused" and error["message"]
    return answer.status_code, error["rule"]


def test_a_page_is_opened(made: GatewayTestbed, web: Pages) -> None:
    answer = ask(made, "open_url", url=f"http://127.0.0.1:{web.port}/to?url=/page")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["url"] == f"http://127.0.0.1:{web.port}/page"
    assert (found["status"], found["content_type"]) == (200, "text/html")
    assert found["title"] == "A page of fish" and not found["truncated"]
    assert "A shoal is a group" in found["text"] and "Imprint" in found["text"]
    assert "<" not in found["text"] and "secret" not in found["text"]


def test_a_text_is_opened_as_it_is_and_cut_where_that_is_asked_for(
    made: GatewayTestbed, web: Pages
) -> None:
    url = f"http://127.0.0.1:{web.port}/text"
    assert ask(made, "open_url", url=url).json()["text"] == "Fußnote"
    cut = ask(made, "open_url", url=url, max_characters=3).json()
    assert (cut["text"], cut["truncated"], cut["title"]) == ("Fuß", True, "")


def test_a_page_that_is_not_there_is_told_with_its_status(made: GatewayTestbed, web: Pages) -> None:
    found = ask(made, "open_url", url=f"http://127.0.0.1:{web.port}/gone").json()
    assert (found["status"], found["title"]) == (404, "Nothing")


def test_a_gigabyte_is_told_to_be_cut(made: GatewayTestbed, web: Pages) -> None:
    found = ask(made, "open_url", url=f"http://127.0.0.1:{web.port}/gigabyte").json()
    assert found["truncated"] and len(found["text"]) == 50_000


def test_the_main_text_of_a_page_and_its_links(made: GatewayTestbed, web: Pages) -> None:
    found = ask(made, "extract_page", url=f"http://127.0.0.1:{web.port}/page").json()
    assert "A shoal is a group" in found["text"] and "Imprint" not in found["text"]
    links = {one["url"]: one["text"] for one in found["links"]}
    assert links[f"http://127.0.0.1:{web.port}/far"] == "large"
    assert found["status"] == 200


def test_a_page_that_is_sent_is_read_where_nothing_is_fetched(plain: GatewayTestbed) -> None:
    found = ask(plain, "extract_page", html=PAGE).json()
    assert (found["url"], found["status"], found["title"]) == (None, None, "A page of fish")
    assert [one["url"] for one in found["links"]] == ["https://whales.example/x"]


def test_the_example_of_the_page_is_answered_as_printed(plain: GatewayTestbed) -> None:
    section = PRINTED.read_text().partition("\n## Tools: ")[2].partition("\n## ")[0]
    words = shlex.split(section.partition("```\n")[2].partition("```")[0].replace("\\\n", " "))
    url, data = words[1], words[words.index("-d") + 1]
    url = url.replace("http://127.0.0.1:52415", plain.url)
    answer = httpx.post(url, content=data, headers={"content-type": "application/json"}, timeout=30)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["title"], answer.json()["text"]) == ("Fish", "A shoal moves as one.")


def test_nothing_is_fetched_and_searched_unless_it_is_configured(plain: GatewayTestbed) -> None:
    assert refused(ask(plain, "open_url", url="http://8.8.8.8/")) == (403, "disabled")
    assert refused(ask(plain, "extract_page", url="http://8.8.8.8/")) == (403, "disabled")
    answer = ask(plain, "web_search", query="fish")
    assert refused(answer) == (403, "no_search")
    assert "tools.search" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("http://127.0.0.1:{port}/kind?is=image/png", (502, "content_type")),
        ("http://127.0.0.1:{port}/round", (502, "redirects")),
        ("http://127.0.0.1:{port}/cut", (502, "broken")),
        ("http://127.0.0.1:{port}/drip", (504, "late")),
        ("http://127.0.0.1:{port}/to?url=http://169.254.169.254/", (403, "address")),
        ("http://127.0.0.1:1/", (403, "not_allowed")),
        ("http://127.0.0.1/", (403, "address")),
        ("http://localhost/", (403, "address")),
        ("http://[::ffff:127.0.0.1]/", (403, "address")),
        ("http://2130706433/", (400, "host")),
        ("http://user:word@8.8.8.8/", (400, "credentials")),
        ("file:///etc/passwd", (400, "scheme")),
        ("http://8.8.8.8:0/", (400, "port")),
        ("8.8.8.8", (400, "url")),
    ],
)
def test_each_refusal_says_its_rule(
    made: GatewayTestbed, web: Pages, path: str, told: tuple[int, str]
) -> None:
    answer = ask(made, "open_url", url=path.replace("{port}", str(web.port)))
    assert refused(answer) == told
    assert answer.json()["error"]["param"] == "url"


def test_every_rule_has_a_status() -> None:
    rules = {rule for group in get_args(FetchRule) for rule in get_args(group) or (group,)}
    assert set(STATUSES) == rules


def test_a_refusal_does_not_tell_where_a_name_leads(made: GatewayTestbed) -> None:
    message = ask(made, "open_url", url="http://localhost/").json()["error"]["message"]
    assert "127.0.0.1" not in message and "::1" not in message


def test_a_search_finds_pages(made: GatewayTestbed, web: Pages) -> None:
    answer = ask(made, "web_search", query="fish & chips", count=3)
    assert answer.status_code == 200, answer.text
    found = answer.json()["results"]
    assert [one["url"] for one in found] == [f"https://{n}.example/" for n in range(3)]
    assert found[0]["title"] == "0 fish & chips" and 0 < len(found[0]["snippet"]) <= 1000
    assert len(ask(made, "web_search", query="x").json()["results"]) == 5


@pytest.mark.parametrize("status", [403, 500, 302])
def test_a_search_engine_that_says_no_is_told(
    made: GatewayTestbed, web: Pages, status: int
) -> None:
    web.search_status = status
    try:
        assert refused(ask(made, "web_search", query="x")) == (502, "broken")
    finally:
        web.search_status = 200


@pytest.mark.parametrize(
    ("tool", "asked", "field"),
    [
        ("open_url", {}, "url"),
        ("open_url", {"url": 5}, "url"),
        ("open_url", {"url": "http://8.8.8.8/", "max_characters": 0}, "max_characters"),
        ("open_url", {"url": "http://8.8.8.8/", "method": "POST"}, "method"),
        ("extract_page", {}, "url"),
        ("extract_page", {"url": "http://8.8.8.8/", "html": "x"}, "url"),
        ("web_search", {"query": ""}, "query"),
        ("web_search", {"query": "x", "count": 51}, "count"),
    ],
)
def test_a_body_that_says_something_else_is_refused(
    made: GatewayTestbed, tool: str, asked: dict[str, Any], field: str
) -> None:
    answer = ask(made, tool, **asked)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_one_client_takes_half_of_the_places(made: GatewayTestbed, web: Pages) -> None:
    answers: list[httpx.Response] = []
    url = f"http://127.0.0.1:{web.port}/silent"

    def wait() -> None:
        answers.append(ask(made, "open_url", url=url))

    before = len(web.heard)
    waiting = [threading.Thread(target=wait) for _ in range(4)]
    for one in waiting:
        one.start()
    eventually(lambda: len(web.heard) - before == 4, 5, "four are fetched")
    answer = ask(made, "open_url", url=url)
    assert refused(answer) == (429, "busy") and answer.headers["retry-after"] == "1"
    assert httpx.get(f"{made.url}/health").status_code == 200
    for one in waiting:
        one.join(20)
    assert [refused(one) for one in answers] == [(504, "late")] * 4
    assert ask(made, "open_url", url=f"http://127.0.0.1:{web.port}/text").status_code == 200


def test_a_hostile_page_holds_up_nobody(made: GatewayTestbed) -> None:
    answers: list[httpx.Response] = []
    hostile = "<div>" * 200_000
    asking = threading.Thread(
        target=lambda: answers.append(ask(made, "extract_page", html=hostile))
    )
    asking.start()
    while asking.is_alive():
        assert httpx.get(f"{made.url}/livez", timeout=2).status_code == 200
        asking.join(0.05)
    assert answers[0].status_code == 200 or refused(answers[0]) == (502, "unreadable")


def test_the_log_has_what_the_answer_does_not(made: GatewayTestbed, web: Pages) -> None:
    ask(made, "open_url", url=f"http://127.0.0.1:{web.port}/text")
    ask(made, "open_url", url="http://10.0.0.1/")
    lines = made.log_lines()
    assert any(line["message"] == "fetching" and line["at"] == "127.0.0.1" for line in lines)
    assert any(line["message"] == "not fetched" and line["rule"] == "address" for line in lines)
