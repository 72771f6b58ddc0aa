"""What a cluster has counted, summed over its nodes as Prometheus sums, is what its clients count.

Three nodes of two HTTP processes each are asked without a pause while a gateway and one HTTP
process are killed with -9 and the master that holds the term is, too. A killed gateway's counts go
on. Lost are requests that were in flight, here streams that are open on purpose: they are not
counted, and of their tokens those are that had come a second before the kill.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.harness.clusters import Cluster, running_cluster
from tests.harness.nodes import MODEL, Node, Stream, eventually, kill
from tests.processes.conftest import PROVING

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(1800)]

ASKS = 150 if PROVING else 12
"""Of each asker, in each of the parts of the story."""
ASKERS = 3 if PROVING else 2
KILLS = 4 if PROVING else 1
OPEN, OPEN_TOKENS = 4, 1500
"""Streams that are open at a kill, and what each may have."""
COUNTERS = {
    "shoal_requests_total": "outcome",
    "shoal_prompt_tokens_total": "",
    "shoal_generation_tokens_total": "",
    "shoal_e2e_request_latency_seconds_count": "",
    "shoal_http_errors_total": "status",
}
"""Each with the label by which it is told here."""
STORY = "Tell me a long story about a fish."


def sent(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """A question in one of several dialects; one of six is a mistake of the client's."""
    tokens = chance.randint(1, 12)
    kind = chance.randrange(6)
    turns = [{"role": "user", "content": f"Count to {chance.randrange(100)}."}]
    said = {"model": MODEL, "messages": turns, "max_tokens": tokens}
    match kind:
        case 0:
            mistake = chance.choice(({"model": "no-such"}, {"max_tokens": "x"}, {"n": 0}))
            return "/v1/chat/completions", {**said, **mistake}
        case 1:
            prompt = f"{chance.randrange(100)} and"
            return "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": tokens}
        case 2:
            asked = {"model": MODEL, "input": "Say a word.", "max_output_tokens": 16 + tokens}
            return "/v1/responses", asked
        case 3:
            return "/v1/chat/completions", {**said, "n": 2}
        case _:
            streamed = {"stream": kind == 4, "ignore_eos": chance.random() < 0.5}
            told = {"stream_options": {"include_usage": True}} if kind == 4 else {}
            return "/v1/chat/completions", {**said, **streamed, **told}


@dataclass
class Told:
    """What the clients of one node were told."""

    finished: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])
    unexpected: list[str] = field(default_factory=list[str])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ended(self, usage: dict[str, Any]) -> None:
        read = usage.get("prompt_tokens", usage.get("input_tokens"))
        made = usage.get("completion_tokens", usage.get("output_tokens"))
        assert read is not None and made is not None, usage
        with self.lock:
            self.finished += 1
            self.prompt_tokens += read
            self.generation_tokens += made

    def failed(self, status: int, path: str, text: str) -> None:
        with self.lock:
            self.errors[str(status)] += 1
            if status not in (400, 404):
                self.unexpected.append(f"{path}: {status} {text}")

    def broke(self, path: str, error: Exception) -> None:
        with self.lock:
            self.unexpected.append(f"{path}: {error!r}")


def ask(node: Node, told: Told, chance: random.Random) -> None:
    """Ask once, on a connection of its own, which either HTTP process may take."""
    path, asked = sent(chance)
    try:
        answer = httpx.post(f"{node.url}{path}", json=asked, timeout=120)
    except httpx.HTTPError as error:
        told.broke(path, error)
        return
    if answer.status_code != 200:
        told.failed(answer.status_code, path, answer.text)
        return
    if not asked.get("stream"):
        told.ended(answer.json()["usage"])
        return
    stream = Stream(lambda _: None)
    for line in answer.text.splitlines():
        stream.take(line)
    if stream.usage is None or stream.error is not None:
        told.unexpected.append(f"{path}: {answer.text}")
    else:
        told.ended(stream.usage)


class Scraped:
    """What one node's counters have grown by, as Prometheus's `increase` has it: a value that is
    less than the one before began at zero again."""

    def __init__(self, node: Node) -> None:
        self.gained: Counter[tuple[str, str]] = Counter()
        self.resets = 0
        self._node = node
        self._lock = threading.Lock()
        self._last: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._took: bool = False
        assert self.scrape()

    def scrape(self) -> bool:
        """Take the node's counters; False where no gateway answers."""
        with self._lock:
            try:
                answer = httpx.get(f"{self._node.url}/metrics", timeout=30)
            except httpx.HTTPError:
                return False
            assert answer.status_code == 200, answer.text
            was_reset = False
            for family in text_string_to_metric_families(answer.text):
                for sample in family.samples:
                    if sample.name in COUNTERS:
                        label = sample.labels.get(COUNTERS[sample.name], "")
                        series = (sample.name, tuple(sorted(sample.labels.items())))
                        last = self._last.get(series, 0.0)
                        began_anew = sample.value < last
                        was_reset |= began_anew
                        if self._took:
                            grown = sample.value - (0.0 if began_anew else last)
                            self.gained[sample.name, label] += int(grown)
                        self._last[series] = sample.value
            self._took = True
            self.resets += was_reset
            return True

    def of(self, name: str, label: str = "") -> int:
        return self.gained[f"shoal_{name}", label]

    def labels(self, name: str) -> dict[str, int]:
        """Counts by label, without those of nothing."""
        named = f"shoal_{name}"
        return {label: n for (one, label), n in self.gained.items() if one == named and n}


@dataclass
class Counted:
    """The cluster, what its clients were told and what it has counted, by node."""

    cluster: Cluster
    told: list[Told]
    scraped: list[Scraped]

    def counts_all(self, number: int, open_tokens: int = 0) -> bool:
        """Whether a node has counted all that its clients were told; tokens of streams that are
        open or were broken, `open_tokens` at most, may be counted too."""
        told, scraped = self.told[number], self.scraped[number]
        scraped.scrape()
        beyond = scraped.of("generation_tokens_total") - told.generation_tokens
        return (
            scraped.of("requests_total", "finished") == told.finished
            and scraped.of("prompt_tokens_total") == told.prompt_tokens
            and scraped.labels("http_errors_total") == dict(told.errors)
            and 0 <= beyond <= open_tokens
        )

    def compared(self) -> str:
        return json.dumps(
            [
                {
                    "finished": told.finished, "prompt": told.prompt_tokens,
                    "generated": told.generation_tokens, "errors": told.errors,
                    "counted": {f"{n} {of}": v for (n, of), v in scraped.gained.items()},
                }
                for told, scraped in zip(self.told, self.scraped, strict=True)
            ]
        )  # fmt: skip

    def asking(
        self, pool: ThreadPoolExecutor, numbers: Sequence[int], seed: int
    ) -> list[Future[None]]:
        """Have some nodes asked by several askers each."""

        def asks(number: int, of: int) -> None:
            chance = random.Random(1000 * seed + 10 * number + of)
            for _ in range(ASKS):
                ask(self.cluster.nodes[number], self.told[number], chance)

        return [pool.submit(asks, number, of) for number in numbers for of in range(ASKERS)]

    def open_streams(self, number: int) -> list[Stream]:
        """Streams of a node that flow."""
        node = self.cluster.nodes[number]
        streams = [
            node.stream(f"{STORY} {one}", max_tokens=OPEN_TOKENS, ignore_eos=True)
            for one in range(OPEN)
        ]
        for stream in streams:
            eventually(lambda one=stream: len(one.at) > 3, 120, "tokens flow")
        return streams

    def settle(self, number: int, streams: list[Stream]) -> int:
        """Take in how streams ended that were open at a kill; return how many broke."""
        for stream in streams:
            stream.wait(300)
            if stream.done and stream.usage is not None:
                self.told[number].ended(stream.usage)
        return sum(not stream.done for stream in streams)


@pytest.fixture(scope="module")
def counted() -> Iterator[Counted]:
    with running_cluster(3, SHOAL_HTTP_PROCESSES="2") as cluster:
        others = [one.node_id() for one in cluster.nodes[1:]]
        cluster.place(excluded_nodes=others)
        for node in cluster.nodes:
            serves(node)
        nodes = cluster.nodes
        yield Counted(cluster, [Told() for _ in nodes], [Scraped(one) for one in nodes])


def serves(node: Node) -> None:
    """Wait until each HTTP process of a node knows the model; no question of it is an error."""

    def ready() -> bool:
        try:
            answers = [httpx.get(f"{node.url}/health", timeout=10) for _ in range(12)]
        except httpx.HTTPError:
            return False
        return all(MODEL in one.json().get("models_ready", ()) for one in answers)

    eventually(ready, 120, "each HTTP process knows the model")


def http_processes(node: Node) -> list[psutil.Process]:
    return psutil.Process(node.pid("gateway")).children()


def kill_gateway(node: Node) -> None:
    """kill -9 the gateway with its HTTP processes; supervisord starts it anew."""
    gateway, children = node.pid("gateway"), http_processes(node)
    kill(gateway)
    for child in children:
        child.kill()
    eventually(
        lambda: node.processes().get("gateway", gateway) != gateway, 60, "it is started anew"
    )


def kill_http_process(node: Node) -> None:
    """kill -9 one HTTP process; the gateway starts another."""
    children = http_processes(node)
    children[0].kill()
    eventually(
        lambda: len(http_processes(node)) == 2 and children[0] not in http_processes(node),
        60,
        "another one is started",
    )


def kill_holder(cluster: Cluster) -> None:
    """kill -9 the master that holds the term; another one, or the next of that node, takes it."""
    holder = cluster.holder()
    term = holder.http.get("/state").json()["state"]["term"]
    kill(holder.pid("master"))

    def taken() -> bool:
        states = [node.http.get("/state").json() for node in cluster.nodes]
        return all(one["live"] and one["state"]["term"] > term for one in states)

    eventually(taken, 120, "the next term is held")


def test_the_sums_over_all_nodes_are_what_the_clients_were_told(counted: Counted) -> None:
    cluster, stop, may_be_beyond = counted.cluster, threading.Event(), [0, 0, 0]

    def scraping() -> None:
        while not stop.wait(0.25):
            for one in counted.scraped:
                one.scrape()

    with ThreadPoolExecutor(32) as pool:
        scraper = pool.submit(scraping)
        try:
            for kill_number in range(KILLS):
                asking = counted.asking(pool, (0, 1, 2), 10 * kill_number)
                kill_holder(cluster)
                for one in asking:
                    one.result()
                for number, act in ((1, kill_gateway), (2, kill_http_process)):
                    beyond = may_be_beyond[number] + OPEN * OPEN_TOKENS
                    elsewhere = [one for one in range(3) if one != number]
                    asking = counted.asking(pool, elsewhere, 10 * kill_number + number)
                    streams = counted.open_streams(number)
                    eventually(
                        lambda of=number, most=beyond: counted.counts_all(of, most),
                        60,
                        "what ended here is counted",
                    )
                    act(cluster.nodes[number])
                    broken = counted.settle(number, streams)
                    assert broken == OPEN or (act is kill_http_process and broken >= 0)
                    may_be_beyond[number] += broken * OPEN_TOKENS
                    serves(cluster.nodes[number])
                    for one in asking:
                        one.result()
            for one in counted.asking(pool, (0, 1, 2), 99):
                one.result()
        finally:
            stop.set()
            scraper.result(60)
    assert [one.unexpected for one in counted.told] == [[], [], []]
    for number, most in enumerate(may_be_beyond):
        try:
            eventually(
                lambda of=number, top=most: counted.counts_all(of, top), 30, "all is counted"
            )
        except AssertionError as late:
            raise AssertionError(f"node {number}: {late}; {counted.compared()}") from late
    summed = sum(one.of("requests_total", "finished") for one in counted.scraped)
    assert summed == sum(one.finished for one in counted.told) > 0
    assert summed == sum(one.of("e2e_request_latency_seconds_count") for one in counted.scraped)
    assert [one.resets for one in counted.scraped] == [0, 0, 0], "no counter begins anew"
    print(counted.compared())
