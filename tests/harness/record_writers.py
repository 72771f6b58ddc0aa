"""Clients that write what a gateway keeps while it is killed, each noting what was acknowledged.

A kind of record is one class, written by one thread: `write` asks for one more, looks at or changes
an earlier one, and may break off anywhere; `check` then holds what is there against what was
acknowledged. What broke off is neither: it may be there or not, whole. Another kind (conversations)
is another class in `KINDS`.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import httpx

from tests.harness.nodes import eventually

MODEL = "shoal-tiny"
ENDED = ("done", "failed", "cancelled")
MADE = ("completed", "incomplete", "failed", "cancelled")
PACE_S = 0.05
MOST_ITEMS = 12
"""Of a conversation that is gone on with."""
Orders = Callable[[random.Random], str]
"""Makes the words of a request."""


def asked(url: str, method: str, path: str, body: Any = None) -> httpx.Response:
    """An answer over a connection of its own, so that any HTTP process may take it. Raises
    httpx.HTTPError where that is killed."""
    return httpx.request(method, f"{url}{path}", json=body, timeout=20)


def persistent(url: str, path: str) -> httpx.Response:
    """An answer to a question, which is asked again while none is given."""

    def found() -> httpx.Response | None:
        try:
            answer = asked(url, "GET", path)
        except httpx.HTTPError:
            return None
        return answer if answer.status_code < 500 else None

    return eventually(found, 60, f"{path} is answered")


class Kind:
    """Records of one kind. `counts` tell what became of the requests, `wrong` what must not be."""

    name: ClassVar[str]

    def __init__(self, url: str, seed: int, orders: Orders) -> None:
        self.url = url
        self.chance = random.Random(f"{seed} {self.name}")
        self.orders = orders
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.gone: set[str] = set()

    def write(self) -> None:
        """Write one, or change one. Raises httpx.HTTPError where that breaks off."""
        raise NotImplementedError

    def check(self) -> None:
        """Hold what is there against what was acknowledged."""
        raise NotImplementedError

    def acknowledged(self, what: str, answer: httpx.Response) -> bool:
        """Count an answer; return whether it acknowledges something."""
        is_good = answer.status_code < 300 and "x-shoal-not-kept" not in answer.headers
        self.counts[what if is_good else f"{what}: {answer.status_code}"] += 1
        if not is_good and answer.status_code in (400, 404, 500):
            self.wrong.append(f"{what}: {answer.status_code} {answer.text[:300]}")
        return is_good

    def same(self, path: str, wanted: Any) -> None:
        """Hold a path's answer against what it was."""
        answer = persistent(self.url, path)
        if answer.status_code != 200 or answer.json() != wanted:
            self.wrong.append(f"{path}: {answer.status_code} {answer.text[:300]} not {wanted}")

    def check_gone(self, path: str) -> None:
        """Hold what was deleted to that."""
        for name in self.gone:
            if (answer := persistent(self.url, f"{path}/{name}")).status_code != 404:
                self.wrong.append(f"{path}/{name} was deleted, and is {answer.status_code}")


class KeptResponses(Kind):
    """Responses, whole and streamed, which go on from each other, and some of which are deleted."""

    name = "responses"
    path = "/v1/responses"

    def __init__(self, url: str, seed: int, orders: Orders) -> None:
        super().__init__(url, seed, orders)
        self.kept: dict[str, tuple[dict[str, Any], int]] = {}
        """Each with how many items it was made from."""

    def write(self) -> None:
        if self.kept and self.chance.random() < 0.1:
            name = self.chance.choice([*self.kept])
            del self.kept[name]  # either way, if this breaks off
            if self.acknowledged("delete", asked(self.url, "DELETE", f"{self.path}/{name}")):
                self.gone.add(name)
            return
        body: dict[str, Any] = {"model": MODEL, "input": self.orders(self.chance)}
        items = 1
        recent = [*self.kept][-20:]
        if recent and self.chance.random() < 0.5:
            before = self.chance.choice(recent)
            if self.kept[before][1] < MOST_ITEMS:
                items += self.kept[before][1] + len(self.kept[before][0]["output"])
                body["previous_response_id"] = before
        made = self._streamed(body) if self.chance.random() < 0.5 else self._whole(body)
        if made is not None:
            self.kept[made["id"]] = made, items

    def _whole(self, body: dict[str, Any]) -> dict[str, Any] | None:
        answer = asked(self.url, "POST", self.path, body)
        return answer.json() if self.acknowledged("kept", answer) else None

    def _streamed(self, body: dict[str, Any]) -> dict[str, Any] | None:
        not_kept = False
        whole = {**body, "stream": True}
        with httpx.stream("POST", f"{self.url}{self.path}", json=whole, timeout=20) as answer:
            if answer.status_code != 200:
                answer.read()
                self.acknowledged("kept", answer)
                return None
            for line in answer.iter_lines():
                not_kept = not_kept or line.startswith(": not kept")
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    if event["type"] == "response.completed" and not not_kept:
                        self.counts["kept"] += 1
                        return event["response"]
        return None

    def check(self) -> None:
        for name, (told, items) in self.kept.items():
            self.same(f"{self.path}/{name}", told)
            listed = persistent(self.url, f"{self.path}/{name}/input_items?limit=100")
            if listed.status_code != 200 or len(listed.json()["data"]) != items:
                self.wrong.append(f"{name} was made from {items} items: {listed.text[:300]}")
        self.check_gone(self.path)


class StoredChats(Kind):
    """Chat completions with `store`, some of which get other labels, or are deleted."""

    name = "chats"
    path = "/v1/chat/completions"

    def __init__(self, url: str, seed: int, orders: Orders) -> None:
        super().__init__(url, seed, orders)
        self.kept: dict[str, tuple[dict[str, Any], list[dict[str, str]]]] = {}
        """Each with the labels that it may have."""

    def write(self) -> None:
        choice = self.chance.random()
        if self.kept and choice < 0.1:
            name = self.chance.choice([*self.kept])
            del self.kept[name]
            if self.acknowledged("delete", asked(self.url, "DELETE", f"{self.path}/{name}")):
                self.gone.add(name)
        elif self.kept and choice < 0.3:
            name = self.chance.choice([*self.kept])
            labels = {"n": str(self.chance.randrange(1000))}
            told, may_be = self.kept[name]
            may_be.append(labels)
            answer = asked(self.url, "POST", f"{self.path}/{name}", {"metadata": labels})
            if self.acknowledged("label", answer):
                self.kept[name] = told, [labels]
        else:
            turns = [{"role": "user", "content": self.orders(self.chance)}]
            body = {"model": MODEL, "messages": turns, "store": True, "metadata": {"n": "-"}}
            answer = asked(self.url, "POST", self.path, body)
            if self.acknowledged("kept", answer):
                self.kept[answer.json()["id"]] = answer.json(), [{"n": "-"}]

    def check(self) -> None:
        for name, (told, may_be) in self.kept.items():
            found = persistent(self.url, f"{self.path}/{name}")
            if found.status_code != 200:
                self.wrong.append(f"{name}: {found.status_code} {found.text[:300]}")
                continue
            labels = found.json()["metadata"]
            if labels not in may_be or found.json() != {**told, "metadata": labels}:
                self.wrong.append(f"{name}: {found.text[:300]} not {told} with one of {may_be}")
        self.check_gone(self.path)


class Jobs(Kind):
    """Jobs that are submitted, looked at and stopped. How one ended is acknowledged once told."""

    name = "jobs"
    path = "/v1/jobs"

    def __init__(self, url: str, seed: int, orders: Orders) -> None:
        super().__init__(url, seed, orders)
        self.open: list[str] = []
        self.stopped: set[str] = set()
        self.ended: dict[str, dict[str, Any]] = {}

    def write(self) -> None:
        choice = self.chance.random()
        if self.open and choice < 0.3:
            name = self.chance.choice(self.open)
            self._seen(name, asked(self.url, "GET", f"{self.path}/{name}"))
        elif self.open and choice < 0.35:
            name = self.open[-1]
            self.stopped.add(name)
            answer = asked(self.url, "POST", f"{self.path}/{name}/cancel", {})
            if answer.status_code != 409:
                self._seen(name, answer)
        else:
            turns = [{"role": "user", "content": self.orders(self.chance)}]
            body = {"model": MODEL, "messages": turns, "stream": self.chance.random() < 0.5}
            wanted = {"path": StoredChats.path, "body": body, "metadata": {"a": "b"}}
            answer = asked(self.url, "POST", self.path, wanted)
            if self.acknowledged("submitted", answer):
                self.open.append(answer.json()["id"])

    def _seen(self, name: str, answer: httpx.Response) -> None:
        if self.acknowledged("seen", answer) and answer.json()["status"] in ENDED:
            self.ended[name] = answer.json()
            self.open.remove(name)

    def check(self) -> None:
        for name in self.open:
            self.ended[name] = eventually(lambda name=name: self._end_of(name), 90, f"{name} ends")
        for name, told in self.ended.items():
            self.same(f"{self.path}/{name}", told)
            self.counts[f"jobs {told['status']}"] += 1
            if told["status"] == "failed" and told["error"]["code"] != "interrupted":
                self.wrong.append(f"{name} failed: {told['error']}")
            if told["status"] == "failed" and told["attempts"] < 3:
                self.wrong.append(f"{name} failed in {told['attempts']} attempts")
            if told["status"] == "cancelled" and name not in self.stopped:
                self.wrong.append(f"{name} was stopped by nobody")

    def _end_of(self, name: str) -> dict[str, Any] | None:
        answer = persistent(self.url, f"{self.path}/{name}")
        if answer.status_code != 200:
            self.wrong.append(f"{name}: {answer.status_code} {answer.text[:300]}")
            return {"status": "lost", "attempts": 0}
        return answer.json() if answer.json()["status"] in ENDED else None

    def attempts(self) -> dict[str, int]:
        """Return by each job's request how often it was begun."""
        return {name.removeprefix("job_"): told["attempts"] for name, told in self.ended.items()}


class BackgroundResponses(Kind):
    """Responses in the background, some of which are read while they are made."""

    name = "background"
    path = "/v1/responses"

    def __init__(self, url: str, seed: int, orders: Orders) -> None:
        super().__init__(url, seed, orders)
        self.open: list[str] = []
        self.made: dict[str, dict[str, Any]] = {}

    def write(self) -> None:
        choice = self.chance.random()
        if self.open and choice < 0.3:
            name = self.chance.choice(self.open)
            answer = asked(self.url, "GET", f"{self.path}/{name}")
            if self.acknowledged("seen", answer) and answer.json()["status"] in MADE:
                self.made[name] = answer.json()
                self.open.remove(name)
        elif self.open and choice < 0.4:
            self._read(self.open[-1], self.chance.randrange(1, 9))
        else:
            body = {"model": MODEL, "input": self.orders(self.chance), "background": True}
            answer = asked(self.url, "POST", self.path, body)
            if self.acknowledged("submitted", answer):
                self.open.append(answer.json()["id"])

    def _read(self, name: str, most: int) -> None:
        url = f"{self.url}{self.path}/{name}?stream=true"
        with httpx.stream("GET", url, timeout=20) as answer:
            for count, _ in enumerate(answer.iter_lines()):
                if count > 3 * most:
                    break
        self.counts["read"] += 1

    def check(self) -> None:
        for name in self.open:
            self.made[name] = eventually(lambda name=name: self._end_of(name), 90, f"{name} ends")
        for name, told in self.made.items():
            self.same(f"{self.path}/{name}", told)
            self.counts[f"responses {told['status']}"] += 1
            if (
                told["status"] == "failed"
                and ("ended before it finished") not in told["error"]["message"]
            ):
                self.wrong.append(f"{name} failed: {told['error']}")
            if told["status"] not in ("completed", "failed", "incomplete"):
                self.wrong.append(f"{name} is {told['status']}")

    def _end_of(self, name: str) -> dict[str, Any] | None:
        answer = persistent(self.url, f"{self.path}/{name}")
        if answer.status_code != 200:
            self.wrong.append(f"{name}: {answer.status_code} {answer.text[:300]}")
            return {"status": "lost"}
        return answer.json() if answer.json()["status"] in MADE else None


KINDS: tuple[type[Kind], ...] = (KeptResponses, StoredChats, Jobs, BackgroundResponses)


class Writers:
    """A thread for each kind, which writes until all are told to stop."""

    def __init__(self, url: str, seed: int, orders: Orders) -> None:
        self.kinds = [kind(url, seed, orders) for kind in KINDS]
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._go_on, args=(kind,), daemon=True) for kind in self.kinds
        ]
        for thread in self._threads:
            thread.start()

    @property
    def jobs(self) -> Jobs:
        """Return the jobs."""
        return next(one for one in self.kinds if isinstance(one, Jobs))

    def stop(self) -> None:
        """End the writing."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a writer does not end"

    def check(self) -> Counter[str]:
        """Hold everything against what was acknowledged; return what became of the requests."""
        found: Counter[str] = Counter()
        for kind in self.kinds:
            kind.check()
            assert not kind.wrong, (kind.name, len(kind.wrong), kind.wrong[:5])
            found += Counter({f"{kind.name} {what}": n for what, n in kind.counts.items()})
        return found

    def _go_on(self, kind: Kind) -> None:
        while not self._stop.wait(kind.chance.random() * 2 * PACE_S):
            try:
                kind.write()
            except httpx.ConnectError:
                kind.counts["not reached"] += 1
            except httpx.HTTPError:
                kind.counts["broken off"] += 1
            except Exception as error:  # the thread must not end unseen
                kind.wrong.append(repr(error))
