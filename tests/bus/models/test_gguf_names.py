"""Names of GGUF files: their parts and quantisations, and the names of models with one."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.models.gguf import (
    canonical,
    lacking_parts,
    part_name,
    quantization_in,
    repository_of,
    stem_of,
    weight_file,
    weight_files,
)
from bus.wire.ids import is_model_id

QUANTIZATIONS = (
    "F32", "F16", "BF16", "Q2_K", "Q3_K_M", "Q4_0", "Q4_K_S", "Q4_K_M", "Q5_1", "Q6_K", "Q6_K_L",
    "Q8_0", "Q8_K_XL", "IQ2_XXS", "IQ4_NL", "TQ1_0", "MXFP4", "UD-Q4_K_XL", "Q4_0_4_4",
)  # fmt: skip
AMBIGUOUS = re.compile(r"(^|[-._])ud$", re.IGNORECASE)
"""The end of a stem that reads as a part of the quantisation after it, as in `UD-Q4_K_XL`."""
STEMS = st.from_regex(r"[A-Za-z][A-Za-z0-9.]{0,8}(-[A-Za-z0-9.]{1,8}){0,3}", fullmatch=True).filter(
    lambda stem: not quantization_in(f"{stem}.gguf") and not AMBIGUOUS.search(stem)
)


@pytest.mark.parametrize(
    ("path", "quantization"),
    [
        ("Llama-3.2-3B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("tinyllama-1.1b-chat-v1.0.Q8_0.gguf", "Q8_0"),
        ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Q4_K_M"),
        ("UD-Q4_K_XL/Big-UD-Q4_K_XL-00001-of-00003.gguf", "UD-Q4_K_XL"),
        ("Q5_K_M/weights.gguf", "Q5_K_M"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("qwen-fp16.gguf", "F16"),
        ("model.gguf", ""),
        ("Qwen3-8B.gguf", ""),
    ],
)
def test_the_quantisation_is_in_the_name_of_the_file_or_its_folder(
    path: str, quantization: str
) -> None:
    assert quantization_in(path) == quantization


@given(STEMS, st.sampled_from(QUANTIZATIONS), st.sampled_from("-._"), st.booleans())
def test_a_quantisation_is_found_in_any_case_and_leaves_the_same_stem(
    stem: str, quantization: str, mark: str, lower: bool
) -> None:
    text = quantization.lower() if lower else quantization
    name = f"{stem}{mark}{text}.gguf"
    assert quantization_in(name) == quantization
    assert stem_of(name) == stem_of(f"{stem}-Q2_K-00001-of-00002.gguf")


@given(st.sampled_from(QUANTIZATIONS), st.data())
def test_spellings_of_a_quantisation_have_one_canonical_form(
    quantization: str, data: st.DataObject
) -> None:
    spelled = "".join(
        data.draw(st.sampled_from([c.lower(), c.upper(), *("-_" if c in "-_" else ())]))
        for c in quantization
    )
    assert canonical(spelled) == quantization
    assert canonical(canonical(spelled)) == canonical(spelled)
    name = f"owner/repo:{canonical(spelled)}"
    assert is_model_id(name) and repository_of(name) == ("owner/repo", quantization)


def test_the_name_of_a_file_stays_as_it_is() -> None:
    assert canonical("My-File.q4_0.gguf") == "My-File.q4_0.gguf"
    assert repository_of("owner/repo") == ("owner/repo", "")


def named(stem: str, count: int) -> list[str]:
    return [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


@given(st.text(string.ascii_letters + "-.", min_size=1), st.integers(1, 40), st.data())
def test_parts_are_whole_or_say_what_is_missing(stem: str, count: int, data: st.DataObject) -> None:
    names = named(stem, count)
    assert weight_files(data.draw(st.permutations([*names, "config.json"]))) == tuple(names)
    assert weight_file(names) == names[0] and not lacking_parts(names)
    lost = data.draw(st.sets(st.sampled_from(names)))
    left = [name for name in names if name not in lost]
    if lost and left:
        assert not weight_files(left) and weight_file(left) is None
        assert lacking_parts(left).startswith(min(lost))


@given(st.text(max_size=40))
def test_a_part_has_a_number_and_a_count(name: str) -> None:
    part = part_name(name)
    assert part is None or name.startswith(part.stem)


def test_other_files_are_not_one_model() -> None:
    assert weight_files(["a.gguf", "README.md"]) == ("a.gguf",)
    assert weight_file(["A.GGUF"]) == "A.GGUF"
    assert weight_file(["a.gguf", "b.GGUF"]) is None
    assert weight_file(["README.md"]) is None
    for names in ([*named("a", 2), *named("b", 2)], [*named("a", 2), "b.gguf"],
                  ["a-00003-of-00002.gguf"], ["a-00000-of-00001.gguf"]):  # fmt: skip
        assert weight_files(names) == () and not lacking_parts(names)
