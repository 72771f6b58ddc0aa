"""Two real runners: one drafts for the other, over real sockets. Texts, counts and ends are those
without drafts, whatever becomes of the proposer."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_model, quantize_model, save_model

from bus.links.cluster_key import ClusterKeys
from bus.links.keyring import new_key, write_keys
from bus.process.endpoints import Endpoints
from bus.process.identity import node_id
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.messages.control import ProposerPlace
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    DraftWeights,
    GenerationRequest,
    TextPart,
    TokensPrompt,
    Usage,
)
from bus.wire.messages.tokens import Accepted, Finished, Refused
from conf.paths import find_paths, make_folders
from tests.harness.clusters import Cluster
from tests.harness.nodes import Node, eventually
from tests.harness.ports import free_port
from tests.harness.slot import ROOT, FakeGateway, Slot, Stream, request, started_slot
from tests.harness.slow_lines import slow_line

pytestmark = pytest.mark.proof

DRAFTS = ModelId("drafts")
FOLDER = ROOT / "conf" / "tiny"
KEYS = ClusterKeys(new_key())
KNOWN: list[NodeId] = []
NUMBERS = itertools.count()
QUESTION = ChatPrompt(
    messages=(ChatMessage(role="user", parts=(TextPart(text="What is shoal?"),)),)
)
PROMPT = (5, 120, 48, 300, 77, 210, 31, 9)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    """A runner at the pace of a larger model: a step takes 30 ms. Its card names a draft model that
    is not on its node."""
    weights = DraftWeights(model=DRAFTS, why_not="the draft model drafts is not on this node")
    home = tmp_path_factory.mktemp("verifier")
    KNOWN.append(joined(home))
    with started_slot(home, FOLDER, fault="heavy", draft=weights) as slot:
        yield slot.ready()


@pytest.fixture
def gateway(verifier: Slot, request: pytest.FixtureRequest) -> Iterator[FakeGateway]:
    made = FakeGateway(verifier, name=request.node.name[:60])
    yield made
    made.close()


def joined(home: Path) -> NodeId:
    """Make a home with the cluster's key, and return its node's id."""
    paths = find_paths(home)
    make_folders(paths)
    write_keys(paths.cluster_key, KEYS, replace=True)
    paths.known_nodes.write_text("\n".join(KNOWN))
    return node_id(paths.state)


@contextlib.contextmanager
def proposer(home: Path) -> Generator[Slot]:
    """A runner with the same weights, on another node of the cluster."""
    node, local = joined(home), Endpoints(str(find_paths(home).runtime)).runner("00")
    fields = {
        "model": DRAFTS,
        "instance": InstanceId(f"inst-{node}"),
        "addresses": (local, f"tcp://127.0.0.1:{free_port()}"),
    }
    with started_slot(home, FOLDER, **fields) as slot:
        yield slot.ready()


def place(slot: Slot, at: str = "") -> ProposerPlace:
    return ProposerPlace(
        instance=InstanceId("inst-1"),
        generation=1,
        model=DRAFTS,
        node=NodeId(slot.spec.instance.removeprefix("inst-")),
        proposer=slot.spec.instance,
        proposer_generation=slot.spec.generation,
        address=at or slot.spec.addresses[1],
    )


def nowhere() -> ProposerPlace:
    return ProposerPlace(instance=InstanceId("inst-1"), generation=1, model=DRAFTS, why="none")


def asked(choice: str, **changes: object) -> GenerationRequest:
    fields = {"prompt": TokensPrompt(token_ids=PROMPT), "speculate": choice, "max_tokens": 96}
    return request(f"r{next(NUMBERS)}", **fields | changes)


def run(gateway: FakeGateway, wanted: GenerationRequest) -> tuple[Stream, float]:
    """The whole answer, and its seconds."""
    began = time.monotonic()
    stream = gateway.submit(wanted)
    gateway.ended(stream, seconds=60.0)
    return stream, time.monotonic() - began


def usage(stream: Stream) -> Usage:
    assert isinstance(stream.end, Finished), stream.end
    return stream.end.usage


def figures(stream: Stream) -> tuple[str, list[str], int, int]:
    counts = usage(stream)
    return stream.text(), stream.finishes, counts.prompt_tokens, counts.completion_tokens


def logprobs(stream: Stream) -> list[float]:
    return [token.logprob for delta in stream.deltas for token in delta.logprobs]


def until(gateway: FakeGateway, verifier: Slot, is_used: bool, seconds: float) -> Refused | None:
    """Wait until a request that names the drafter `remote` is accepted, or refused; return the
    refusal."""
    end = time.monotonic() + seconds
    while True:
        verifier.listen()
        stream = gateway.submit(asked("remote", max_tokens=1))
        gateway.until(lambda stream=stream: stream.answer is not None, "an answer")
        if isinstance(stream.answer, Accepted):
            gateway.ended(stream)
        if isinstance(stream.answer, Accepted) == is_used:
            return stream.answer if isinstance(stream.answer, Refused) else None
        assert time.monotonic() < end, stream.answer
        time.sleep(0.1)


CASES: dict[str, dict[str, object]] = {
    "greedy": {},
    "seeded": {"sampling": {"temperature": 1.0, "seed": 7}},
    "top-p": {"sampling": {"temperature": 0.8, "top_p": 0.9, "seed": 11}},
    "penalties": {
        "sampling": {"temperature": 0.0, "frequency_penalty": 0.7, "repetition_penalty": 1.2}
    },
    "seeded with penalties": {"sampling": {"temperature": 1.0, "seed": 3, "presence_penalty": 0.5}},
    "end tokens": {"ignore_eos": False, "max_tokens": 300, "prompt": QUESTION},
    "cut inside a block": {"max_tokens": 11},
    "stop string": {"stop": "taken from the plain text"},
    "log-probabilities": {"top_logprobs": 3, "max_tokens": 24},
    "two choices": {"n": 2, "sampling": {"temperature": 1.0, "seed": 5}, "max_tokens": 48},
}


@pytest.fixture(scope="module")
def helper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    with proposer(tmp_path_factory.mktemp("proposer")) as slot:
        yield slot


@pytest.mark.parametrize("case", CASES)
def test_texts_counts_and_ends_are_those_without_drafts(
    verifier: Slot, helper: Slot, gateway: FakeGateway, case: str
) -> None:
    verifier.tell(place(helper))
    until(gateway, verifier, True, 20.0)
    fields = dict(CASES[case])
    if case == "stop string":
        whole = run(gateway, asked("off"))[0].text()
        fields["stop"] = (whole[60:64],)
    plain, plain_s = run(gateway, asked("off", **fields))
    drafted, drafted_s = run(gateway, asked("remote", **fields))
    assert plain.finishes[0] == ("stop" if case in ("end tokens", "stop string") else "length")
    assert figures(plain) == figures(drafted)
    for one, other in zip(logprobs(plain), logprobs(drafted), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    counts = usage(drafted)
    print(
        f"\n{case}: {counts.completion_tokens} tokens in {plain_s:.2f} s plain and "
        f"{drafted_s:.2f} s drafted; accepted {counts.accepted_tokens} of {counts.drafted_tokens}"
    )
    assert usage(plain).drafted_tokens == 0
    if counts.completion_tokens > 40 and case != "two choices":
        assert counts.accepted_tokens > 0


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_proposer_that_dies_or_freezes_changes_no_text_and_is_tried_again(
    verifier: Slot, gateway: FakeGateway, tmp_path: Path, blow: signal.Signals
) -> None:
    wanted = {"max_tokens": 240, "sampling": {"temperature": 1.0, "seed": 21}}
    plain, plain_s = run(gateway, asked("off", **wanted))
    with proposer(tmp_path / "first") as first:
        verifier.tell(place(first))
        until(gateway, verifier, True, 20.0)
        began = time.monotonic()
        stream = gateway.submit(asked("remote", **wanted))
        gateway.until(lambda: stream.tokens > 60, "some text")
        os.kill(first.process.pid, blow)
        hit_at = time.monotonic()
        refusal = until(gateway, verifier, False, 20.0)
        noticed_s = time.monotonic() - hit_at
        gateway.ended(stream, seconds=60.0)
        took_s = time.monotonic() - began
        assert figures(stream) == figures(plain)
        assert refusal is not None
        words = "is gone" if blow == signal.SIGKILL else "was silent for 3 s"
        assert f"{DRAFTS} {words}" in refusal.refusal.message.replace("the process of ", "")
        assert refusal.refusal.field == "x_speculate"
        auto, _ = run(gateway, asked("auto", **wanted))
        assert figures(auto) == figures(plain)
        if blow == signal.SIGSTOP:
            os.kill(first.process.pid, signal.SIGCONT)
            until(gateway, verifier, True, 30.0)
            again_s = time.monotonic() - hit_at
            print(f"\nfrozen proposer: used again {again_s:.1f} s after it was frozen")
    print(
        f"\n{blow.name}: {plain_s:.2f} s plain, {took_s:.2f} s with the loss; refused after "
        f"{noticed_s:.2f} s: {refusal.refusal.message}"
    )
    with proposer(tmp_path / "second") as second:
        verifier.tell(place(second))
        later = FakeGateway(verifier, f"later {blow}")
        until(later, verifier, True, 30.0)
        anew, _ = run(later, asked("remote", **wanted))
        later.close()
        assert figures(anew) == figures(plain)
        assert usage(anew).accepted_tokens > 0


def test_the_delay_decides_whether_a_proposer_is_used(
    verifier: Slot, helper: Slot, gateway: FakeGateway
) -> None:
    wanted = {"max_tokens": 160}
    plain, plain_s = run(gateway, asked("off", **wanted))
    for added_ms in (0, 5, 15, 50, 150):
        with slow_line(helper.spec.addresses[1], added_ms / 2000) as address:
            verifier.tell(nowhere())
            until(gateway, verifier, False, 20.0)
            verifier.tell(place(helper, address))
            if added_ms > 100:
                end = time.monotonic() + 20.0
                while "the limit is 100 ms" not in (
                    text := _refusal(until(gateway, verifier, False, 20.0))
                ):
                    assert time.monotonic() < end, text
                    time.sleep(0.2)
                print(f"\n{added_ms} ms added: refused: {text}")
                continue
            until(gateway, verifier, True, 20.0)
            drafted, drafted_s = run(gateway, asked("remote", **wanted))
            assert figures(drafted) == figures(plain)
            counts = usage(drafted)
            print(
                f"\n{added_ms} ms added: {drafted_s:.2f} s, plain {plain_s:.2f} s; accepted "
                f"{counts.accepted_tokens} of {counts.drafted_tokens}"
            )
            if added_ms <= 15:
                assert counts.accepted_tokens > 30


def _refusal(refused: Refused | None) -> str:
    return "" if refused is None else refused.refusal.message


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes: one has the model `big`, whose card names a draft model that only the other has: a
    copy of the same weights in 8 bits."""
    smaller = tmp_path_factory.mktemp("models") / "smaller"
    quantized(FOLDER, smaller)
    with contextlib.closing(Cluster(2, SHOAL_HTTP_PROCESSES="1")) as cluster:
        first, second = cluster.nodes
        big = first.home / "data" / "models" / "big"
        shutil.copytree(FOLDER, big, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        (big / "card.toml").write_text('draft_model = "smaller"\nspeculate = "remote"\n')
        shutil.copytree(smaller, second.home / "data" / "models" / "smaller")
        cluster.up()
        yield cluster


def quantized(folder: Path, into: Path) -> None:
    """Write a model in 8 bits."""
    model, config = quantize_model(*load_model(folder), 64, 8)
    save_model(into, model)
    (into / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(folder / name, into)


def test_a_node_uses_the_draft_model_that_another_node_has_loaded(pair: Cluster) -> None:
    first, second = pair.nodes
    asked = {"model": "big", "temperature": 0, "max_tokens": 120, "ignore_eos": True}

    def use() -> dict[str, Any]:
        (found,) = first.http.get("/fleet").json()["in_use"] or [{"state": "none"}]
        return found

    plain = first.chat("Count to thirty.", **asked, x_speculate="off").json()
    refused = first.chat("Count to thirty.", **asked, x_speculate="remote")
    assert refused.status_code == 400 and "no instance of the draft model" in refused.text
    loaded = second.chat("hi", model="smaller", max_tokens=1)
    assert loaded.status_code == 200, loaded.text
    began = time.monotonic()
    eventually(lambda: use()["state"] == "ready", 30.0, "the draft model is used")
    print(f"\nused {time.monotonic() - began:.1f} s after it was loaded: {use()}")
    assert use()["node"] == second.node_id()
    drafted = first.chat("Count to thirty.", **asked, x_speculate="remote").json()
    for part in ("choices", "usage"):
        assert drafted[part] == plain[part]
    print(f"{drafted['timing']}")
    shown = first.shoal("fleet", "big")
    assert "the draft model smaller is used on" in shown.stdout + shown.stderr
    second.http.delete(f"/instance/{_instance(second, 'smaller')}")
    eventually(lambda: use()["state"] == "none", 30.0, "it was unloaded")
    again = first.chat("Count to thirty.", **asked).json()
    assert again["choices"] == plain["choices"], "by its card, and without a proposer"


def _instance(node: Node, model: str) -> str:
    instances = node.state()["instances"]
    return next(name for name, found in instances.items() if found["model"] == model)
