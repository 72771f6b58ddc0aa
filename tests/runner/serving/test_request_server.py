"""The one server of requests with a role that repeats words, over real sockets and threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.wire.ids import Boot, RequestId
from bus.wire.messages.requests import InputsPrompt, TextPrompt
from bus.wire.messages.tokens import (
    Accepted,
    Cancel,
    ChoiceEnd,
    Credit,
    Displaced,
    Failed,
    Finished,
    Ping,
    Recall,
    Refused,
    TokenDelta,
)
from runner import lifecycle
from tests.harness.echo_role import EchoRole
from tests.harness.role_site import Gateway, Site

EchoSite = Site[EchoRole]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[EchoSite]:
    made = Site(tmp_path, EchoRole, max_rows=3, max_waiting=2, context_tokens=99, drop_idle_s=0.2)
    try:
        yield made
    finally:
        made.close()


def held(site: EchoSite) -> threading.Semaphore:
    """Let the engine say no further word by itself."""
    site.role.loop.let = threading.Semaphore(0)
    return site.role.loop.let


def ask(
    site: EchoSite, name: str, words: str, credit: int = 64, remaining_ms: int = 60_000
) -> None:
    prompt = TextPrompt(text=words)
    site.gateway.submit(name, prompt, credit=credit, remaining_ms=remaining_ms)


def text_of(gateway: Gateway, name: str) -> str:
    mine = gateway.entries.get(name, [])
    return "".join(entry.text for entry in mine if isinstance(entry, TokenDelta)).strip()


def finish_of(gateway: Gateway, name: str) -> str:
    (end,) = [entry for entry in gateway.entries[name] if isinstance(entry, ChoiceEnd)]
    return end.finish_reason


def test_words_come_in_order_and_the_end_says_what_was_used(site: EchoSite) -> None:
    ask(site, "a", "one two three")
    end = site.ended("a")
    assert isinstance(end, Finished)
    assert text_of(site.gateway, "a") == "one two three"
    assert finish_of(site.gateway, "a") == "stop"
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (3, 3)
    assert site.accepted("a") == Accepted(RequestId("a"), 0, 2 + 1)
    assert site.role.responder.ends == ["a"] and site.role.is_empty


def test_a_submit_that_is_repeated_gets_the_same_answer_and_runs_once(site: EchoSite) -> None:
    let = held(site)
    for _ in range(3):
        ask(site, "a", "one two")
    site.until(lambda: len(site.gateway.answers.get("a", ())) == 3)
    assert len(set(site.gateway.answers["a"])) == 1
    let.release(9)
    site.ended("a")
    assert text_of(site.gateway, "a") == "one two"
    ask(site, "a", "one two")
    assert site.refused("a").refusal.reason == "conflict"
    other = site.connect("other")
    other.submit("a", TextPrompt(text="hi"))
    assert site.refused("a", other).refusal.reason == "conflict"
    assert site.role.responder.ends == ["a"]


def test_what_the_server_or_the_responder_cannot_take_is_refused_and_costs_nothing(
    site: EchoSite,
) -> None:
    site.gateway.submit("model", TextPrompt(text="hi"), model="other")
    assert site.refused("model").refusal.reason == "unknown_model"
    site.gateway.submit("generation", TextPrompt(text="hi"), generation=2)
    assert site.refused("generation").refusal.reason == "wrong_generation"
    site.gateway.submit("inputs", InputsPrompt(inputs=("hi",)))
    assert site.refused("inputs").refusal.reason == "unsupported"
    held(site)
    for number in range(5):
        ask(site, f"r{number}", "word")
        site.accepted(f"r{number}")
    ask(site, "over", "word")
    refusal = site.refused("over").refusal
    assert (refusal.reason, refusal.position) == ("queue_full", 5)
    site.gateway.submit("shares", TextPrompt(text="word"), sharer=("other",))
    site.accepted("shares")
    assert not site.role.responder.ends
    assert site.role.open_requests == 6


def test_without_credit_the_responder_stops_and_goes_on_when_it_is_granted(site: EchoSite) -> None:
    ask(site, "a", "one two three four five six", credit=2)
    site.until(lambda: text_of(site.gateway, "a") == "one two")
    ask(site, "b", "other words go on")
    site.ended("b")
    echo = site.role.responder.open[RequestId("a")]
    assert echo.is_paused and echo.said == 2, "nothing is made for a client that does not read"
    site.gateway.send(Credit(RequestId("a"), 0, 3))
    site.until(lambda: text_of(site.gateway, "a") == "one two three four five")
    site.gateway.send(Credit(RequestId("a"), 0, 1))
    assert isinstance(site.ended("a"), Finished)
    assert text_of(site.gateway, "a") == "one two three four five six"


def test_a_client_that_reads_nothing_is_given_up(site: EchoSite) -> None:
    ask(site, "slow", "one two", credit=1)
    site.until(lambda: text_of(site.gateway, "slow") == "one")

    def is_given_up() -> bool:
        site.role.watch(site.reactor.now())
        return site.role.is_empty

    site.until(is_given_up)
    end = site.ended("slow")
    assert isinstance(end, Failed) and "read nothing for 0.2 s" in end.message
    assert end.usage.completion_tokens == 1


def test_a_cancelled_request_ends_at_once_and_its_late_word_is_dropped(site: EchoSite) -> None:
    let = held(site)
    ask(site, "gone", "one two three")
    let.release(1)
    site.until(lambda: text_of(site.gateway, "gone") == "one")
    site.gateway.send(Cancel(RequestId("gone"), "client"))
    end = site.ended("gone")
    assert isinstance(end, Finished) and finish_of(site.gateway, "gone") == "cancelled"
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (2, 1)
    let.release(9)
    ask(site, "next", "hello")
    site.ended("next")
    assert text_of(site.gateway, "gone") == "one"
    assert site.role.responder.ends == ["gone", "next"]
    while let.acquire(blocking=False):
        pass
    ask(site, "late", "one")
    site.accepted("late")
    assert site.role.cancel(RequestId("late")) and not site.role.cancel(RequestId("gone"))


def test_a_cancelled_request_ends_though_its_client_has_no_credit(site: EchoSite) -> None:
    ask(site, "a", "one two", credit=1)
    site.until(lambda: text_of(site.gateway, "a") == "one")
    site.gateway.send(Cancel(RequestId("a"), "client"))
    assert isinstance(site.ended("a"), Finished)


def test_a_request_that_is_cancelled_before_it_is_accepted_is_accepted_and_ends(
    site: EchoSite,
) -> None:
    let = held(site)
    for name, why in (("client", "client"), ("late", "deadline")):
        ask(site, name, "wait two three")
        site.gateway.send(Cancel(RequestId(name), why))
    names = ("client", "late")
    site.until(lambda: all(site.noted("cancel_requested", name) for name in names))
    assert not site.gateway.answers and site.role.open_requests == 2
    let.release(2)
    assert isinstance(site.ended("client"), Finished)
    assert finish_of(site.gateway, "client") == "cancelled"
    end = site.ended("late")
    assert isinstance(end, Failed) and end.reason == "deadline"
    for name in ("client", "late"):
        site.accepted(name)
        assert text_of(site.gateway, name) == ""


def test_a_deadline_ends_a_request_that_was_accepted(site: EchoSite) -> None:
    held(site)
    ask(site, "late", "one two", remaining_ms=1)
    site.accepted("late")
    site.until(
        lambda: site.reactor.now() > site.role.responder.open[RequestId("late")].request.deadline_at
    )
    site.role.watch(site.reactor.now())
    end = site.ended("late")
    assert isinstance(end, Failed) and end.reason == "deadline"


def test_an_error_of_the_responder_ends_its_request_alone(site: EchoSite) -> None:
    ask(site, "raises", "raise at once")
    assert site.refused("raises").refusal.reason == "bad_request"
    ask(site, "unheard", "wait fail")
    assert site.refused("unheard").refusal.reason == "bad_request"
    ask(site, "fails", "one fail three")
    ask(site, "good", "one two three")
    end = site.ended("fails")
    assert isinstance(end, Failed) and end.reason == "internal"
    assert text_of(site.gateway, "fails") == "one"
    assert isinstance(site.ended("good"), Finished)
    assert "RuntimeError" in site.logged.getvalue()
    assert sorted(site.role.responder.ends) == ["fails", "good", "raises", "unheard"]


def test_an_engine_that_breaks_ends_the_runner_and_what_is_open_fails(site: EchoSite) -> None:
    ask(site, "breaks", "break")
    ask(site, "waits", "wait for it")
    site.until(lambda: site.host.left)
    assert site.host.left is not None
    code, reason, message = site.host.left
    assert (code, reason) == (lifecycle.ENGINE_ERROR, "runner_lost")
    site.until(lambda: site.role.open_requests == 2)
    site.role.entered("ended")
    site.role.fail_all("runner_lost", message)
    end = site.ended("breaks")
    assert isinstance(end, Failed) and end.reason == "runner_lost"
    assert site.refused("waits").refusal.reason == "not_ready"
    assert sorted(site.role.responder.ends) == ["breaks", "waits"]


def test_a_gateway_that_hangs_up_ends_its_requests_alone(site: EchoSite) -> None:
    let, other = held(site), site.connect("other")
    for name in ("a", "b"):
        other.submit(name, TextPrompt(text="one two three " * 50))
        site.accepted(name, other)
    ask(site, "mine", "one two three")
    site.accepted("mine")
    site.hang_up(other)

    def is_noticed() -> bool:
        let.release()
        return "its socket is closed" in site.logged.getvalue()

    site.until(is_noticed)
    let.release(999)
    assert isinstance(site.ended("mine"), Finished)
    site.until(lambda: site.role.is_empty)
    assert sorted(site.role.responder.ends) == ["a", "b", "mine"]


def test_while_it_drains_it_refuses_and_ends_what_is_open(site: EchoSite) -> None:
    let = held(site)
    ask(site, "open", "one two")
    site.accepted("open")
    site.host.signal("drain")
    ask(site, "late", "one")
    assert site.refused("late").refusal.reason == "draining"
    assert not site.role.is_empty
    let.release(9)
    assert isinstance(site.ended("open"), Finished)
    assert site.role.is_empty


def test_a_request_that_is_recalled_goes_back_unless_it_has_begun(site: EchoSite) -> None:
    let = held(site)
    for name in ("begun", "waits"):
        ask(site, name, "one two")
        site.accepted(name)
    let.release(1)
    site.until(lambda: text_of(site.gateway, "begun") == "one")
    waits = site.role.responder.open[RequestId("waits")].request
    for name in ("begun", "waits"):
        site.gateway.send(Recall(RequestId(name), True))
    site.until(lambda: site.gateway.answers["waits"][-1] == Displaced(RequestId("waits")))
    let.release(99)
    assert isinstance(site.ended("begun"), Finished)
    assert "waits" not in site.gateway.entries and waits.is_over
    ask(site, "waits", "it may come again")
    assert isinstance(site.ended("waits"), Finished)


def test_a_pong_owes_while_a_request_has_credit(site: EchoSite) -> None:
    def owes() -> bool:
        site.gateway.pong = None
        site.gateway.send(Ping(Boot("gw")))
        site.until(lambda: site.gateway.pong)
        assert site.gateway.pong is not None
        return site.gateway.pong.owes

    let = held(site)
    assert not owes()
    ask(site, "a", "one two", credit=1)
    site.accepted("a")
    assert owes()
    let.release(1)
    site.until(lambda: text_of(site.gateway, "a") == "one")
    assert not owes()


class Simulation:
    """Requests of two gateways, and what happens to them by chance. `credit` is all that was
    granted."""

    def __init__(self, site: EchoSite, seed: int) -> None:
        self.site, self.chance = site, random.Random(seed)
        self.gateways = (site.gateway, site.connect("other"))
        self.owner: dict[str, Gateway] = {}
        self.credit: dict[str, int] = {}

    def submit(self) -> None:
        name = f"r{len(self.owner)}"
        self.owner[name] = self.chance.choice(self.gateways)
        self.credit[name] = self.chance.randint(0, 3)
        words = self.chance.choices(("a", "b", "fail", "wait", "raise"), (6, 6, 1, 1, 1), k=5)
        self.owner[name].submit(name, TextPrompt(text=" ".join(words)), credit=self.credit[name])

    def act(self) -> None:
        """Do something with a request."""
        name = self.chance.choice(list(self.owner))
        match self.chance.choice(("grant", "grant", "cancel", "recall", "turn")):
            case "grant":
                self.grant(name, self.chance.randint(1, 3))
            case "cancel":
                why = self.chance.choice(("client", "deadline"))
                self.owner[name].send(Cancel(RequestId(name), why))
            case "recall":
                self.owner[name].send(Recall(RequestId(name), self.chance.random() < 0.5))
            case _:
                self.site.reactor.turn(0.001)

    def grant(self, name: str, credit: int) -> None:
        self.credit[name] += credit
        self.owner[name].send(Credit(RequestId(name), 0, credit))

    def is_over(self, name: str) -> bool:
        answers = self.owner[name].answers.get(name) or [None]
        return self.owner[name].has_ended(name) or isinstance(answers[-1], Refused | Displaced)

    def outcome(self, name: str) -> str:
        """Check the answers and entries of a request that is over; return how it ended."""
        gateway = self.owner[name]
        answers, entries = gateway.answers[name], gateway.entries.get(name, [])
        assert sum(isinstance(entry, TokenDelta) for entry in entries) <= self.credit[name]
        if isinstance(answers[-1], Accepted):
            assert len(answers) == 1
            return type(self.site.ended(name, gateway)).__name__
        assert not entries, "nothing is sent of a request that was not accepted or went back"
        return type(answers[-1]).__name__


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_each_request_ends_exactly_once(site: EchoSite, seed: int) -> None:
    simulation = Simulation(site, seed)
    for _ in range(60):
        simulation.submit()
        for _ in range(simulation.chance.randint(0, 4)):
            simulation.act()
    for name in simulation.owner:
        simulation.grant(name, 9)
    site.until(lambda: all(map(simulation.is_over, simulation.owner)) and site.role.is_empty)
    outcomes = {simulation.outcome(name) for name in simulation.owner}
    assert outcomes >= {"Refused", "Finished", "Failed"}
    ends = site.role.responder.ends
    assert len(ends) == len(set(ends)) and not site.role.responder.open
