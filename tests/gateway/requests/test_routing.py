"""Names to models, requests to instances."""

from __future__ import annotations

import random

from bus.wire.cards import model_named
from bus.wire.ids import InstanceId, ModelId, NodeId, RequestId
from bus.wire.instances import Conditions, Instance, RankReady, Shard, Status
from bus.wire.messages.requests import ChatMessage, ChatPrompt, GenerationRequest, TextPart
from gateway.requests.routing import (
    AFFINITY_SLACK,
    InstanceLoad,
    affinity_of,
    choose,
    given_up,
    ready_instances,
)

MODELS = {ModelId("shoal-tiny"), ModelId("mlx-community/Qwen3-4B"), ModelId("other/Qwen3-8B:q4")}


def instance(name: str, status: Status = "ready", *, generation: int = 1) -> Instance:
    node = NodeId("n1")
    return Instance(
        instance=InstanceId(name),
        model=ModelId("m"),
        shards=(Shard(rank=0, node=node, first_layer=0, last_layer=1, bytes_reserved=1),),
        status=status,
        generation=generation,
        context_tokens=10,
        keep_alive_s=1.0,
        ready=(RankReady(rank=0, node=node, process="runner:00", addresses=("ipc://x",), pid=1),),
        why="it would not load" if status == "failed" else "",
    )


def chat(*texts: str) -> GenerationRequest:
    turns = tuple(
        ChatMessage(role="user" if number % 2 == 0 else "assistant", parts=(TextPart(text=text),))
        for number, text in enumerate(texts)
    )
    return GenerationRequest(
        request_id=RequestId("r"), model=ModelId("m"), prompt=ChatPrompt(messages=turns)
    )


def test_a_name_means_the_exact_id_first() -> None:
    assert model_named("shoal-tiny", MODELS) == "shoal-tiny"
    assert model_named("other/Qwen3-8B:q4", MODELS) == "other/Qwen3-8B:q4"


def test_latest_is_ollamas_word_for_the_only_one() -> None:
    assert model_named("shoal-tiny:latest", MODELS) == "shoal-tiny"
    assert model_named("library/shoal-tiny", MODELS) == "shoal-tiny"
    assert model_named("registry.ollama.ai/library/shoal-tiny:latest", MODELS) == "shoal-tiny"
    both = [ModelId("o/r:Q4_K_M"), ModelId("o/r:Q8_0")]
    for name in ("o/r:Q4_K_M", "hf.co/o/r:Q4_K_M", "huggingface.co/o/r:q4_k_m", "r:q4_k_m"):
        assert model_named(name, both) == "o/r:Q4_K_M"
    assert model_named("o/r", both) is None


def test_the_last_part_of_a_name_is_enough_when_only_one_has_it() -> None:
    assert model_named("qwen3-4b", MODELS) == "mlx-community/Qwen3-4B"
    assert model_named("qwen3-4b", {*MODELS, ModelId("b/qwen3-4B")}) is None


def test_half_a_name_means_nothing() -> None:
    assert model_named("Qwen3", MODELS) is None
    assert model_named("", MODELS) is None


def test_only_ready_instances_that_were_not_tried_may_answer() -> None:
    all_of_them = [
        instance("a"),
        instance("b", "draining"),
        instance("c", "placed"),
        instance("d", generation=2),
    ]
    ready = ready_instances(all_of_them, ModelId("m"), {(InstanceId("a"), 1)})
    assert [one.instance for one in ready] == ["d"]
    again = ready_instances(all_of_them, ModelId("m"), {(InstanceId("d"), 1)})
    assert [one.instance for one in again] == ["a", "d"]


def test_a_conversation_stays_where_its_prefix_is_warm() -> None:
    ready = [instance(name) for name in "abcdef"]
    first = choose(ready, {}, affinity_of(chat("hello")))
    later = choose(ready, {}, affinity_of(chat("hello", "hi", "and now?")))
    assert first is not None and first == later
    spread = {choose(ready, {}, affinity_of(chat(f"hello {n}"))).instance for n in range(60)}  # type: ignore[union-attr]
    assert len(spread) == 6


def test_requests_that_the_client_says_belong_together_have_one_instance() -> None:
    ready = [instance(name) for name in "abcdef"]
    chosen = {choose(ready, {}, affinity_of(chat(f"hello {n}"), "key")).instance for n in range(60)}  # type: ignore[union-attr]
    assert len(chosen) == 1
    spread = {choose(ready, {}, affinity_of(chat("hello"), f"{n}")).instance for n in range(60)}  # type: ignore[union-attr]
    assert len(spread) == 6


def test_a_warm_prefix_is_worth_a_few_rows_and_no_more() -> None:
    ready = [instance("a"), instance("b")]
    affinity = affinity_of(chat("hello"))
    warm = choose(ready, {}, affinity)
    assert warm is not None
    at_slack = {warm.instance: InstanceLoad(AFFINITY_SLACK)}
    assert choose(ready, at_slack, affinity) == warm
    beyond = {warm.instance: InstanceLoad(AFFINITY_SLACK + 1)}
    assert choose(ready, beyond, affinity) != warm


def test_a_conversation_is_in_two_caches_at_most_however_many_copies_and_rows_there_are() -> None:
    dice = random.Random(48)
    ready = [instance(name) for name in "abcdef"]
    for number in range(40):
        affinity = affinity_of(chat(f"hello {number}"))
        seen: dict[InstanceId, int] = {}
        for _ in range(50):
            loads = {one.instance: InstanceLoad(dice.randint(0, 32)) for one in ready}
            found = choose(ready, loads, affinity)
            assert found is not None
            seen[found.instance] = seen.get(found.instance, 0) + 1
        assert len(seen) == 2, seen


def test_two_choices_keep_the_longest_queue_short() -> None:
    """Each asks on its own, by what it heard last: all rows of ten requests ago."""
    ready = [instance(name) for name in "abcdefgh"]
    rows, heard = dict.fromkeys((one.instance for one in ready), 0), dict[InstanceId, int]()
    for number in range(400):
        if number % 10 == 0:
            heard = dict(rows)
        found = choose(ready, {n: InstanceLoad(r) for n, r in heard.items()}, f"{number}")
        assert found is not None
        rows[found.instance] += 1
    assert max(rows.values()) - min(rows.values()) <= 2 * AFFINITY_SLACK + 10, rows


def test_a_full_instance_is_asked_only_when_all_are_full() -> None:
    ready = [instance(name) for name in "abc"]
    full = {one.instance: InstanceLoad(2, full=True) for one in ready[:2]}
    for number in range(20):
        assert choose(ready, full, str(number)) == ready[2]
    everywhere = full | {ready[2].instance: InstanceLoad(2, full=True)}
    seen = [choose(ready, everywhere, str(number)) for number in range(20)]
    assert all(one in seen for one in ready)
    suspect = full | {ready[2].instance: InstanceLoad(0, suspect=True)}
    assert choose(ready, suspect, "x") in ready[:2], "one that is full answers, at least"


def test_a_suspect_instance_is_asked_only_when_there_is_no_other() -> None:
    ready = [instance("a"), instance("b")]
    loads = {InstanceId("a"): InstanceLoad(0, suspect=True), InstanceId("b"): InstanceLoad(30)}
    for number in range(20):
        assert choose(ready, loads, str(number)) == ready[1]
    assert choose(ready[:1], loads, "x") == ready[0]
    assert choose([], {}, "x") is None


def test_a_model_is_given_up_when_all_its_copies_failed() -> None:
    assert given_up([instance("a", "failed")], ModelId("m")) == "it would not load"
    assert given_up([instance("a", "failed"), instance("b", "placed")], ModelId("m")) is None
    assert given_up([], ModelId("m")) is None


def test_a_model_is_not_given_up_while_a_copy_is_to_be_placed_again() -> None:
    again = instance("a", "failed").model_copy(update={"place_again": Conditions(min_nodes=2)})
    assert given_up([again], ModelId("m")) is None
    assert given_up([instance("b", "failed"), again], ModelId("m")) is None


def test_a_copy_that_makes_way_is_given_nothing_new() -> None:
    yields = instance("leaves").model_copy(update={"yields_to": "other"})
    assert ready_instances([yields, instance("stays")], ModelId("m")) == [instance("stays")]
