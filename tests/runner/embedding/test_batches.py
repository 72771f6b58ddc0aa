"""Which inputs are computed together: whose turn it is, how many, and of which dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import GenerationRequest, InputsPrompt
from bus.wire.messages.tokens import Entry, Finished, Vectors
from runner.embedding import Batch, BatchPace, OpenEmbedding, next_batch
from runner.embedding.batches import LEAST_TOKENS, MOST_TOKENS
from tests.harness.embedder import Words, vector
from tests.harness.open_requests import StandInHost, open_request


def opened(
    name: str,
    lengths: Sequence[int],
    *,
    sharer: str = "",
    priority: int = 10,
    dimensions: int | None = None,
    credit: int = 64,
    entries: list[Entry] | None = None,
) -> OpenEmbedding:
    """A request whose inputs are ready, of so many tokens each."""
    inputs = tuple((7,) * length for length in lengths)
    prompt = InputsPrompt(inputs=inputs, dimensions=dimensions)
    request = GenerationRequest(
        request_id=RequestId(name), model=ModelId("m"), prompt=prompt, priority=priority
    )
    sharers, entries = (sharer or name,), [] if entries is None else entries
    host = StandInHost(lambda _request: made.close(2.0))
    made = OpenEmbedding(open_request(request, host, entries, credit=credit, sharer=sharers))
    made.request.accept(0.0)
    while made.part() is not None:
        made.prepared([Words(one) for one in inputs])
    return made


def batch_of(requests: Sequence[OpenEmbedding], number: int = 1, budget: int = 100) -> Batch:
    made = next_batch(requests, number=number, budget_tokens=budget, vector_bytes=16, now=1.0)
    assert made is not None
    return made


def counts(batch: Batch) -> dict[str, int]:
    return {str(one.request.request_id): len(part) for one, part in batch.parts.items()}


def test_one_input_does_not_wait_behind_the_many_of_another() -> None:
    many, one = opened("many", [10] * 60), opened("one", [10])
    assert counts(batch_of([many, one])) == {"many": 9, "one": 1}


def test_those_who_ask_share_a_batch_however_many_requests_they_have() -> None:
    mine = [opened(f"mine{number}", [10] * 9, sharer="me") for number in range(8)]
    other = opened("other", [10] * 9, sharer="other")
    shared = counts(batch_of([*mine, other]))
    assert shared["other"] >= 2
    assert sum(shared.values()) == 10


def test_what_did_not_fit_has_the_first_turn_of_the_next_batch() -> None:
    small, large = opened("small", [40] * 9), opened("large", [90])
    assert counts(batch_of([small, large])) == {"small": 2}
    assert counts(batch_of([small, large], number=2)) == {"large": 1}


def test_an_input_larger_than_any_batch_is_one_by_itself() -> None:
    assert counts(batch_of([opened("huge", [500, 500])])) == {"huge": 1}


def test_a_higher_priority_is_filled_first_and_lower_ones_take_what_is_left() -> None:
    low, high = opened("low", [10] * 9, priority=50), opened("high", [10] * 6, priority=1)
    assert counts(batch_of([low, high])) == {"high": 6, "low": 4}


def test_vectors_of_other_dimensions_have_batches_of_their_own() -> None:
    two, four = opened("two", [10], dimensions=2), opened("four", [10], dimensions=4)
    first = batch_of([two, four])
    second = batch_of([two, four], number=2)
    assert (first.dimensions, second.dimensions) == (2, 4)
    assert counts(second) == {"four": 1}


def test_without_credit_nothing_is_computed() -> None:
    stalled = opened("stalled", [10], credit=0)
    assert next_batch([stalled], number=1, budget_tokens=9, vector_bytes=16, now=0.0) is None
    stalled.request.grant(0, 1, 2.0)
    assert counts(batch_of([stalled])) == {"stalled": 1}


def test_vectors_of_a_batch_fit_into_one_frame() -> None:
    many = opened("many", [1] * 60)
    batch = next_batch([many], number=1, budget_tokens=999, vector_bytes=1 << 16, now=0.0)
    assert batch is not None and batch.inputs == 16


def test_the_budget_follows_the_measured_pace_within_bounds() -> None:
    pace = BatchPace()
    pace.measured(1000, 1.0)
    assert pace.budget_tokens == LEAST_TOKENS
    assert pace.expected_s(500) == 0.5
    for _ in range(40):
        pace.measured(20_000, 0.2)
    assert 9_000 < pace.budget_tokens < 11_000
    pace.measured(3, 1.0)  # a small batch says nothing of the pace of large ones
    assert pace.budget_tokens > 9_000
    for _ in range(40):
        pace.measured(1 << 20, 0.1)
    assert pace.budget_tokens == MOST_TOKENS


@given(
    st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(20, 200),
)
def test_every_input_is_computed_once_in_its_order_within_the_budget(
    asked: list[list[int]], budget: int
) -> None:
    told = [list[Entry]() for _ in asked]
    requests = [
        opened(f"r{number}", lengths, sharer=f"s{number % 2}", entries=told[number])
        for number, lengths in enumerate(asked)
    ]
    number = 0
    while open_ones := [one for one in requests if not one.request.is_over]:
        number += 1
        assert number <= sum(map(len, asked)), "each batch computes something"
        batch = batch_of(open_ones, number, budget)
        assert batch.tokens <= budget or batch.inputs == 1
        vectors = [vector(prompt) for prompt in batch.prompts]
        for request, part in batch.parts.items():
            mine, vectors = vectors[: len(part)], vectors[len(part) :]
            request.computed(part, mine, 2.0)
    for entries, lengths in zip(told, asked, strict=True):
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        assert isinstance(entries[-1], Finished)
        assert entries[-1].usage.prompt_tokens == sum(lengths)
        got = [one for entry in entries if isinstance(entry, Vectors) for one in entry.vectors]
        assert got == [vector((7,) * length) for length in lengths]
        starts = [entry.start for entry in entries if isinstance(entry, Vectors)]
        assert starts == sorted(set(starts))
