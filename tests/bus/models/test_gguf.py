"""The header of a GGUF file: what it says, and that no lie in it does harm."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.models.gguf import (
    ABILITIES,
    BadGguf,
    LongArray,
    gguf_facts,
    missing_ability,
    read_header,
)
from bus.models.gguf.header import MOST_BYTES, READ_BYTES
from bus.models.gguf.tensors import TYPES
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import (
    GenerationRequest,
    Sampling,
    TextPrompt,
)
from tests.harness.gguf_files import F16, F32, SMALL, embedder, gguf, small

WHOLE = small()


def facts(data: bytes) -> Any:
    return gguf_facts(read_header(io.BytesIO(data), len(data)))


def why(data: bytes, size_bytes: int | None = None) -> str:
    with pytest.raises(BadGguf) as raised:
        gguf_facts(read_header(io.BytesIO(data), len(data) if size_bytes is None else size_bytes))
    return str(raised.value)


def test_a_header_says_what_placement_needs() -> None:
    said = facts(WHOLE)
    assert (said.architecture, said.layers, said.context_tokens) == ("llama", 2, 2048)
    assert (said.vocabulary, said.quantization, said.parameters) == (3, "Q4_K_M", 192)
    assert said.weights_bytes == 384 and said.template == SMALL["tokenizer.chat_template"]
    assert said.kv_bytes == (2 * 2 * 16 * 2,) * 2, "keys and values of two heads of 16, in 16 bits"


def test_heads_may_differ_by_layer_and_heads_may_have_widths_of_their_own() -> None:
    said = facts(
        small(
            llama__attention__head_count_kv=[2, 0],
            llama__attention__key_length=32,
            llama__attention__value_length=8,
        )
    )
    assert said.kv_bytes == (2 * (32 + 8) * 2, 0)


@pytest.mark.parametrize(("number", "pooling"), [(1, "mean"), (2, "cls"), (3, "last")])
def test_a_file_that_says_how_to_pool_is_an_embedding_model(number: int, pooling: str) -> None:
    decoder = facts(small(llama__pooling_type=number))
    assert (decoder.pooling, decoder.vector_width) == (pooling, 64)
    assert sum(decoder.kv_bytes) > 0
    encoder = facts(embedder(bert__pooling_type=number, bert__embedding_length_out=16))
    assert (encoder.pooling, encoder.vector_width, encoder.kv_bytes) == (pooling, 16, (0, 0))
    assert facts(small(llama__pooling_type=0)).pooling == facts(WHOLE).pooling == ""


def test_without_a_known_file_type_the_commonest_type_names_the_quantisation() -> None:
    assert facts(small(general__file_type=999)).quantization == "F16"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "needs 4 of 0 bytes"),
        (b"PK\3\4" + WHOLE[4:], "the file begins with b'PK"),
        (b"GGUF" + struct.pack("<I", 1) + WHOLE[8:], "the file's version is 1"),
        (b"GGUF" + struct.pack(">I", 3) + WHOLE[8:], "big-endian"),
        (WHOLE[:8] + struct.pack("<QQ", 1 << 60, 1), "tensors; the limit is"),
        (WHOLE[:8] + struct.pack("<QQ", 1, 1 << 60), "metadata entries; the limit is"),
        (WHOLE[:24] + struct.pack("<Q", 1 << 62), "a metadata key has"),
        (WHOLE[:-1], "the file is truncated"),
        (WHOLE[:200], "the file is truncated"),
        (small(general__architecture=None), "has no general.architecture"),
        (small(general__architecture="A B"), "general.architecture is"),
        (small(llama__block_count=None), "has no llama.block_count"),
        (small(llama__block_count=1 << 30), "llama.block_count is 1073741824"),
        (small(llama__context_length="long"), "llama.context_length is 'long'"),
        (small(llama__attention__head_count_kv=[1]), "one for each layer"),
        (small(general__type="adapter"), "a LoRA adapter"),
        (small(general__architecture="clip"), "projector"),
        (small(split__count=4), "one of 4 parts"),
        (small(llama__pooling_type=4), "no tensor cls.output.weight"),
        (small(llama__pooling_type=9), "llama.pooling_type is 9; it must be 0 to 4"),
        (small(llama__pooling_type=True), "llama.pooling_type is True"),
        (embedder(bert__pooling_type=None), "bert.pooling_type is missing"),
        (embedder(bert__pooling_type=0), "bert.pooling_type is missing"),
        (small(tokenizer__ggml__tokens=None), "no tokenizer"),
        (small(general__alignment=0), "general.alignment is 0"),
        (gguf(SMALL, {}), "the file has no tensors"),
        (gguf(SMALL, {"w": (99, (4,), b"")}), "the type 99"),
        (gguf(SMALL, {"w": (F32, (0, 4), b"")}), "an impossible shape"),
        (gguf(SMALL, {"w": (F32, (1 << 40, 1 << 40), b"")}), "an impossible shape"),
        (gguf(SMALL, {"w": (2, (31,), b"")}), "stores blocks of 32"),
        (gguf(SMALL, {"w": (F16, (1 << 30,), b"")}), "the file is truncated"),
        (gguf(SMALL, {"w": (F16, (1,) * 5, b"12")}), "5 dimensions"),
        (WHOLE.replace(b"general.file_type", b"general.file_typ\xff"), "is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(data: bytes, said: str) -> None:
    assert said in why(data)


def ranked(outputs: int = 1, types: int = 1, **changed: Any) -> bytes:
    """Return a small file that is a reranker by its header."""
    tokens = {"tokenizer.ggml.model": "t5", "general.architecture": "bert"}
    sizes = {"bert.block_count": 2, "bert.context_length": 64, "bert.embedding_length": 64}
    metadata = {**SMALL, **tokens, **sizes, "bert.pooling_type": 4, **changed}
    rows = {"token_embd.weight": 3, "token_types.weight": types, "cls.output.weight": outputs}
    return gguf(metadata, {name: (F16, (64, n), bytes(128 * n)) for name, n in rows.items()})


def test_a_reranker_is_told_from_an_embedding_model() -> None:
    reranker = facts(ranked())
    assert (reranker.ranks, reranker.pooling, reranker.vector_width) == (True, "rank", 0)
    assert not reranker.gives_chances and sum(reranker.kv_bytes) == 0
    assert not facts(embedder()).ranks
    qwen = {"general.architecture": "qwen3", "qwen3.block_count": 2, "qwen3.context_length": 64,
            "qwen3.embedding_length": 64, "qwen3.pooling_type": 4}  # fmt: skip
    assert facts(ranked(outputs=2, **qwen)).gives_chances
    closing = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.add_eos_token": True}
    assert facts(ranked(**closing)).ranks


def test_a_reranker_that_llama_server_computes_otherwise_is_refused() -> None:
    assert "the classifier has 3 labels" in why(ranked(outputs=3))
    assert "token types or a separator at the end" in why(ranked(types=2))
    pieces = {"tokenizer.ggml.model": "bert"}
    assert "token types or a separator at the end" in why(ranked(**pieces))


def test_tensors_that_overlap_or_have_one_name_are_refused() -> None:
    tensors = {"first": (F32, (8,), bytes(32)), "twice": (F32, (8,), bytes(32))}
    data = gguf(SMALL, tensors)
    at = data.index(b"twice") + 5 + 4 + 8 + 4
    assert "overlaps" in why(data[:at] + struct.pack("<Q", 0) + data[at + 8 :])
    assert "not aligned" in why(data[:at] + struct.pack("<Q", 33) + data[at + 8 :])
    assert "the same name" in why(data.replace(b"twice", b"first"))


def test_long_arrays_are_skipped_unless_they_are_wanted() -> None:
    tokens = [f"t{number}" for number in range(2_000)]
    data = small(tokenizer__ggml__tokens=tokens, tokenizer__ggml__scores=[0.5] * 2_000)
    metadata = read_header(io.BytesIO(data), len(data)).metadata
    assert metadata["tokenizer.ggml.tokens"] == LongArray(2_000)
    assert metadata["tokenizer.ggml.scores"] == LongArray(2_000)
    kept = read_header(io.BytesIO(data), len(data), ("tokenizer.ggml.tokens",)).metadata
    assert kept["tokenizer.ggml.tokens"] == tuple(tokens)
    assert facts(data).vocabulary == 2_000


class Counted(io.BytesIO):
    """A stream that counts what is read, and never ends."""

    read_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None and 0 <= size <= MOST_BYTES
        data = super().read(size)
        self.read_bytes += size
        return data + bytes(size - len(data))


def test_a_header_that_claims_to_be_huge_is_read_in_part_only() -> None:
    head = WHOLE[:24] + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 12, 1 << 22)
    stream = Counted(head)
    with pytest.raises(BadGguf):
        read_header(stream, 1 << 40)
    assert stream.read_bytes <= MOST_BYTES + 2 * READ_BYTES


@given(st.integers(0, len(WHOLE) - 1))
def test_a_cut_file_is_refused(length: int) -> None:
    assert why(WHOLE[:length])


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=12))
def test_a_lie_anywhere_is_refused_or_harmless(at: int, lie: bytes) -> None:
    data = WHOLE[:at] + lie + WHOLE[at + len(lie) :]
    try:
        said = facts(data)
    except BadGguf as error:
        assert str(error)
    else:
        assert 0 < said.layers <= 4096 and said.weights_bytes <= len(data)


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_are_refused(data: bytes, begins_well: bool) -> None:
    assert why(WHOLE[:24] + data if begins_well else data)


def test_types_have_whole_blocks() -> None:
    assert all(kind.values and kind.size_bytes for kind in TYPES.values())
    assert len({kind.name for kind in TYPES.values()}) == len(TYPES)


NEEDS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"sampling": Sampling(repetition_penalty=1.5, presence_penalty=0.5)},
    "logit_bias": {"sampling": Sampling(repetition_penalty=0.9, logit_bias={1: 5.0})},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "model": {"adapter": "mine"},
    "x_speculate": {"speculate": "ngram"},
}


OBEYED = frozenset((
    "request_id", "model", "prompt", "n", "max_tokens", "stop", "sampling", "output",
    "tool_choice", "parallel_tool_calls", "top_logprobs", "thinking", "ignore_eos", "priority",
    "client_id", "key_id", "question", "min_tokens", "effort", "thinking_budget", "variables",
    "history", "template", "trace", "temperature", "top_p", "top_k", "min_p", "seed",
    "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias",
))  # fmt: skip
"""Fields that shoal or llama-server obeys for a GGUF model. The others are refused by name."""
HINTS = {"prediction"}
"""Fields that can only make an answer faster; llama-server does not get them."""


def test_each_field_of_a_request_is_obeyed_or_refused_for_gguf_models() -> None:
    fields = GenerationRequest.model_fields.keys() | Sampling.model_fields.keys()
    assert fields - OBEYED - HINTS == {"prompt_logprobs", "adapter", "speculate"}, (
        "a new field: see `ABILITIES`"
    )
    assert fields >= OBEYED


def request(**fields: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id=RequestId("r"), model=ModelId("m"), prompt=TextPrompt(text="x"), **fields
    )


def test_each_missing_ability_is_found_in_a_request_that_needs_it() -> None:
    assert {one.field for one in ABILITIES if not one.done} == NEEDS.keys()
    assert missing_ability(request(n=3, stop=("x",), sampling=Sampling(seed=4, top_k=3))) is None
    for field, needs in NEEDS.items():
        lacking = missing_ability(request(**needs))
        assert lacking is not None and lacking.field == field and not lacking.done
