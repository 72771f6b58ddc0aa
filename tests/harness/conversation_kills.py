"""Kills HTTP processes and gateways at random while conversations are added to, and holds what is
in these against what was acknowledged."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually
from tests.harness.http_clients import ready
from tests.harness.job_kills import http_processes, kill_family, killed, persistent

OPEN = ("queued", "in_progress")


@dataclass(slots=True)
class Asked:
    """Something that was asked of a conversation: the text that names it, the response's id as far
    as that was told, and whether its end was."""

    text: str
    name: str = ""
    acknowledged: bool = False
    alone: bool = False
    """Whether it is items that were added without a response."""


@dataclass(slots=True)
class Book:
    """A conversation, and all that was asked of it."""

    name: str
    asked: list[Asked] = field(default_factory=list[Asked])


class ConversationKills:
    """A gateway that is killed, and its conversations."""

    def __init__(self, testbed: GatewayTestbed, options: dict[str, Any], seed: int) -> None:
        self.testbed = testbed
        self.options = options
        self.chance = random.Random(seed)
        self.count = 0
        self.books = [self._begun() for _ in range(3)]

    def _begun(self) -> Book:
        answer = httpx.post(f"{self.testbed.url}/v1/conversations", json={}, timeout=30)
        assert answer.status_code == 200, answer.text
        return Book(answer.json()["id"])

    def point(self) -> None:
        """Ask for several things at once, and kill meanwhile."""
        orders = [self._order() for _ in range(self.chance.randint(1, 4))]
        threads = [threading.Thread(target=act, args=args) for act, args in orders]
        for thread in threads:
            thread.start()
        threading.Event().wait(self.chance.choice((0.0, self.chance.uniform(0.0, 0.15))))
        self._kill()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        eventually(self.testbed.is_ready, 20, "new processes serve")
        eventually(lambda: ready(self.testbed), 20, "they know the instance")

    def _order(self) -> tuple[Any, tuple[Any, ...]]:
        self.count += 1
        book = self.chance.choice(self.books)
        text = f"tokens={self.chance.choice((1, 2, 6))} every_ms={self.chance.choice((0, 8))} "
        asked = Asked(f"{text}n{self.count};")
        book.asked.append(asked)
        act = self.chance.choice((self._streamed, self._streamed, self._added, self._background))
        return act, (book.name, asked)

    def _streamed(self, conversation: str, asked: Asked) -> None:
        body = {"model": MODEL, "input": asked.text, "conversation": conversation, "stream": True}
        with contextlib.suppress(httpx.HTTPError):
            url = f"{self.testbed.url}/v1/responses"
            with httpx.stream("POST", url, json=body, timeout=30) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        event = json.loads(line.removeprefix("data: "))
                        asked.name = event.get("response", {}).get("id", asked.name)
                        asked.acknowledged |= event["type"] == "response.completed"

    def _added(self, conversation: str, asked: Asked) -> None:
        asked.alone = True
        items = [{"role": "user", "content": f"{asked.text} {part}"} for part in "ab"]
        with contextlib.suppress(httpx.HTTPError):
            url = f"{self.testbed.url}/v1/conversations/{conversation}/items"
            answer = httpx.post(url, json={"items": items}, timeout=30)
            asked.acknowledged = answer.status_code == 200

    def _background(self, conversation: str, asked: Asked) -> None:
        body = {"model": MODEL, "input": asked.text, "conversation": conversation}
        with contextlib.suppress(httpx.HTTPError):
            url = f"{self.testbed.url}/v1/responses"
            answer = httpx.post(url, json={**body, "background": True}, timeout=30)
            if answer.status_code == 200:
                asked.name, asked.acknowledged = answer.json()["id"], True

    def _kill(self) -> None:
        """Kill all HTTP processes, or all of the gateway, which then starts anew."""
        if self.chance.random() >= 0.2:
            killed(*http_processes(self.testbed))
            return
        kill_family(self.testbed.gateway.pid, self.chance.random())
        self.testbed.gateway.wait(10)
        self.testbed.log.close()
        self.testbed.gateway = self.testbed.start_gateway(**self.options)

    def check(self) -> int:
        """Each conversation has what was acknowledged, whole, once; of all else the whole or
        nothing; and a response is kept where it is in its conversation. Return how much was
        acknowledged."""
        return sum(self._check(book) for book in self.books)

    def _check(self, book: Book) -> int:
        for asked in book.asked:
            if asked.name:
                eventually(lambda name=asked.name: self._ended(name), 90, f"{asked.name} ends")
        found = self._texts(book.name)
        for asked in book.asked:
            places = [place for place, (_, text) in enumerate(found) if asked.text in text]
            if asked.acknowledged and asked.name and self._status(asked.name) != "completed":
                continue  # a job that was cut too often, and says so
            assert not asked.acknowledged or places, (asked, "was lost", found)
            if not places:
                assert not asked.name or self._status(asked.name) != "completed", asked
                continue
            if asked.alone:
                assert [found[place][1][-1] for place in places] == ["a", "b"], (asked, found)
                continue
            [place] = places
            assert found[place + 1][0] == "assistant", (asked, found)
            if asked.name:
                response = persistent(self.testbed, "GET", f"/v1/responses/{asked.name}").json()
                assert response["output"][0]["content"][0]["text"] == found[place + 1][1]
        assert not list(Path(self.testbed.folder).glob("records.sqlite.broken*"))
        return sum(asked.acknowledged for asked in book.asked)

    def _texts(self, conversation: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        after = ""
        while True:
            query = f"?order=asc&limit=50{after}"
            path = f"/v1/conversations/{conversation}/items{query}"
            page = persistent(self.testbed, "GET", path).json()
            found += [(one["role"], one["content"][0]["text"]) for one in page["data"]]
            if not page["has_more"]:
                return found
            after = f"&after={page['last_id']}"

    def _status(self, name: str) -> str:
        answer = persistent(self.testbed, "GET", f"/v1/responses/{name}")
        return answer.json()["status"] if answer.status_code == 200 else ""

    def _ended(self, name: str) -> bool:
        return self._status(name) not in OPEN
