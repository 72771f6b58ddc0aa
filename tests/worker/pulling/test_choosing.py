"""Which GGUF file of a repository is pulled: the one that is named, or the one that fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import ModelId
from worker.pulling.choosing import GgufChoice, NoChoice, choose_gguf, gguf_offers

GB = 1_000_000_000
BITS = {
    "Q2_K": 3.2, "Q3_K_M": 3.9, "Q4_0": 4.6, "Q4_K_M": 4.85, "Q5_1": 6.0, "Q5_K_M": 5.7,
    "Q6_K": 6.6, "Q8_0": 8.5, "F16": 16.0,
}  # fmt: skip
"""Bits per weight of quantisations, about."""


def repository(billions: float, stem: str = "Model") -> dict[str, int]:
    files = {f"{stem}-{name}.gguf": int(billions * GB * bits / 8) for name, bits in BITS.items()}
    return {**files, "README.md": 1_000, "config.json": 700, f"mmproj-{stem}-F16.gguf": GB // 2,
            "imatrix.gguf": 1_000, f"{stem}-lora-F16.gguf": 1_000}  # fmt: skip


def chosen(model: str, sizes: dict[str, int], memory_gb: float = 0) -> GgufChoice:
    choice = choose_gguf(ModelId(model), sizes, int(memory_gb * GB))
    assert isinstance(choice, GgufChoice), choice
    return choice


def refused(model: str, sizes: dict[str, int]) -> NoChoice:
    choice = choose_gguf(ModelId(model), sizes, 0)
    assert isinstance(choice, NoChoice), choice
    return choice


@pytest.mark.parametrize(
    ("billions", "memory_gb", "quantization"),
    [
        (1, 4, "Q8_0"), (3, 4, "Q3_K_M"), (3, 16, "Q8_0"), (3, 64, "Q8_0"),
        (8, 4, "Q2_K"), (8, 16, "Q8_0"), (8, 64, "Q8_0"),
        (14, 16, "Q4_K_M"), (14, 64, "Q8_0"), (32, 16, "Q2_K"), (32, 64, "Q8_0"),
        (70, 64, "Q3_K_M"),
    ],
)  # fmt: skip
def test_the_memory_chooses_the_file(billions: float, memory_gb: int, quantization: str) -> None:
    choice = chosen("o/r", repository(billions), memory_gb)
    assert choice.offer.quantization == quantization, choice.why
    assert choice.offer.paths == (f"Model-{quantization}.gguf",)
    assert quantization in choice.why and f"{memory_gb * 0.75:.1f} GB" in choice.why
    assert "name another of the 9 as o/r:QUANTISATION" in choice.why


def test_why_the_smallest_is_chosen_is_told_where_none_fits() -> None:
    assert "the smallest, because none fits into the 3.0 GB" in chosen("o/r", repository(70), 4).why


def test_weights_in_full_and_old_kinds_are_taken_where_nothing_else_is() -> None:
    assert chosen("o/r", {"m-F16.gguf": GB, "m-Q4_0.gguf": GB // 4}, 64).offer.file == "m-Q4_0.gguf"
    assert chosen("o/r", {"m-F16.gguf": GB, "m-F32.gguf": 2 * GB}, 64).offer.file == "m-F32.gguf"
    only = chosen("o/r", {"weights.gguf": GB, "config.json": 9})
    assert only.offer.file == "weights.gguf" and "the only quantisation" in only.why


@pytest.mark.parametrize(
    "tag", ["Q4_K_M", "q4_k_m", "Q4-k-m", "Model-Q4_K_M.gguf", "model-q4_k_m.GGUF"]
)
def test_a_named_quantisation_is_chosen_in_any_spelling(tag: str) -> None:
    choice = chosen(f"o/r:{tag}", repository(70), 4)
    assert choice.offer.file == "Model-Q4_K_M.gguf" and choice.why == "Q4_K_M (42.4 GB), as named"


def test_an_unknown_quantisation_lists_those_that_there_are_with_sizes() -> None:
    refusal = refused("o/r:Q9_K", repository(8))
    assert refusal.reason == "not_found"
    assert "o/r has no quantisation Q9_K; it has Q2_K (3.2 GB), Q3_K_M (3.9 GB)" in refusal.text
    assert "Q8_0 (8.5 GB), F16 (16.0 GB)" in refusal.text and "mmproj" not in refusal.text


def test_a_repository_without_a_language_model_in_gguf_says_so() -> None:
    for files in ({"model.safetensors": GB}, {"mmproj-F16.gguf": GB}, {"x-lora-f16.gguf": 9}):
        refusal = refused("o/r:Q4_K_M", files)
        assert refusal.reason == "unfit" and "no GGUF file of a language model" in refusal.text


def test_a_file_that_is_named_whole_is_taken_whatever_it_is() -> None:
    assert chosen("o/r:mmproj-Model-F16.gguf", repository(8)).offer.size_bytes == GB // 2


def test_files_of_several_models_are_not_guessed_among() -> None:
    sizes = {**repository(1, "Small"), **repository(8, "Large")}
    for model in ("o/r", "o/r:Q4_K_M"):
        refusal = refused(model, sizes)
        assert refusal.reason == "unfit" and "several models" in refusal.text
    assert chosen("o/r:Large-Q4_K_M.gguf", sizes).offer.file == "Large-Q4_K_M.gguf"


def in_parts(stem: str, count: int, folder: str = "") -> dict[str, int]:
    return {f"{folder}{stem}-{n:05}-of-{count:05}.gguf": 10 * GB for n in range(1, count + 1)}


def test_all_parts_are_chosen_also_from_a_folder() -> None:
    sizes = {**in_parts("M-Q8_0", 3, "Q8_0/"), "M-Q4_K_M.gguf": 9 * GB}
    choice = chosen("o/r:q8_0", sizes)
    assert choice.offer.paths == tuple(in_parts("M-Q8_0", 3, "Q8_0/"))
    assert choice.offer.size_bytes == 30 * GB
    assert chosen("o/r:M-Q8_0-00001-of-00003.gguf", sizes).offer == choice.offer
    assert chosen("o/r", sizes, 16).offer.file == "M-Q4_K_M.gguf"


def test_a_missing_part_of_the_repository_is_named() -> None:
    sizes = in_parts("M-Q8_0", 3)
    del sizes["M-Q8_0-00002-of-00003.gguf"]
    assert "M-Q8_0-00002-of-00003.gguf is missing" in refused("o/r:Q8_0", sizes).text
    sizes["M-Q4_0.gguf"] = GB
    assert chosen("o/r", sizes).offer.file == "M-Q4_0.gguf"


def test_a_file_name_that_no_disk_of_another_node_takes_is_refused() -> None:
    assert "other characters" in refused("o/r:Q8_0", {"my model Q8_0.gguf": GB}).text


FILES = st.dictionaries(
    st.builds(
        "{}{}-{}{}.gguf".format,
        st.sampled_from(["", "Q4_K_M/", "x/"]),
        st.sampled_from(["m", "n", "mmproj-m"]),
        st.sampled_from(["Q4_K_M", "q8_0", "F16", "b"]),
        st.sampled_from(["", "-00001-of-00002", "-00002-of-00002", "-00003-of-00002"]),
    ),
    st.integers(0, 99 * GB),
)


@given(FILES, st.integers(0, 99 * GB), st.sampled_from(["", ":Q4_K_M", ":F16", ":m-b.gguf"]))
def test_every_list_gives_a_whole_model_or_a_reason(
    files: dict[str, int], memory_bytes: int, tag: str
) -> None:
    choice = choose_gguf(ModelId(f"o/r{tag}"), files, memory_bytes)
    if isinstance(choice, NoChoice):
        assert choice.text
    else:
        assert set(choice.offer.paths) <= files.keys() and not choice.offer.lacks
        assert choice.offer.size_bytes == sum(files[path] for path in choice.offer.paths)
    named = [path for offer in gguf_offers(files) for path in offer.paths]
    assert len(named) == len(set(named)) and not any("mmproj" in path for path in named)
