"""What a folder's `tokenizer.json` may make of a text is bounded before any library opens it."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, normalizers

from conf.paths import bundled_models
from runner.text.opening import TokenizerError, check_file, open_tokenizer, panics_told
from runner.text.opening.bounds import MOST_GROWTH, growth_of
from runner.text.tokenizer import ModelTokenizer
from tests.harness.nodes import MODEL

DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def written(folder: Path, **parts: Any) -> Path:
    path = folder / "tokenizer.json"
    told = json.loads((bundled_models()[MODEL] / "tokenizer.json").read_text())
    path.write_text(json.dumps(told | {"pre_tokenizer": None} | parts))
    return path


def nested(part: dict[str, Any], depth: int) -> dict[str, Any]:
    for _ in range(depth):
        part = {"type": "Sequence", "normalizers": [part]}
    return part


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"normalizer": {"type": "Sequence", "normalizers": [DOUBLED] * 30}},
            "1,073,741,824 times",
        ),
        ({"normalizer": {"normalizers": [DOUBLED] * 30}}, "1,073,741,824 times"),
        ({"decoder": {"type": "Sequence", "decoders": [DOUBLED] * 30}}, "1,073,741,824 times"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 20}}, "times as long"),
        ({"normalizer": nested(DOUBLED, 20_000)}, "nested too deep"),
        ({"normalizer": ["Lowercase"]}, "has a form unknown to shoal"),
    ],
    ids=["doubled", "of an old form", "decoder", "bytes of bytes", "deep", "a list"],
)
def test_a_tokenizer_that_makes_too_much_of_a_text_is_refused_by_name(
    tmp_path: Path, parts: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said == "nested too deep":  # the library that writes JSON does not go so deep
        text, inner = '{"normalizer": ', '{"type": "Sequence", "normalizers": ['
        path = tmp_path / "tokenizer.json"
        path.write_text(text + inner * 20_000 + "]}" * 20_000 + "}")
    else:
        path = written(tmp_path, **parts)
    with pytest.raises(TokenizerError, match=said):
        check_file(path)
    with pytest.raises(TokenizerError, match=said):
        open_tokenizer(tmp_path, {}, ())


def test_what_is_no_json_is_told_and_what_is_not_there_is_left_to_who_opens_it(
    tmp_path: Path,
) -> None:
    check_file(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="truncated"):
        check_file(tmp_path / "tokenizer.json")


def test_the_bundled_tokenizer_is_far_from_the_bound(tmp_path: Path) -> None:
    check_file(bundled_models()[MODEL] / "tokenizer.json")
    seen = {"normalizer": {"type": "NFKC"}, "decoder": {"type": "ByteLevel"}}
    check_file(written(tmp_path, **seen))
    assert max(growth_of(part) for part in seen.values()) * 20 < MOST_GROWTH


EXPRESSIONS = ("a", "a|b", "a*", "(?=a)", r"\b", "", "a+", "[ab]", "^", "$", "(a|)", r"\s{0,2}")
PARTS = st.one_of(
    st.builds(
        lambda text, content: (
            normalizers.Replace(text, content),
            {"type": "Replace", "pattern": {"String": text}, "content": content},
        ),
        st.text("ab", min_size=1, max_size=3),
        st.text("abﷺ", max_size=4),
    ),
    st.builds(
        lambda expression, content: (
            normalizers.Replace(Regex(expression), content),
            {"type": "Replace", "pattern": {"Regex": expression}, "content": content},
        ),
        st.sampled_from(EXPRESSIONS),
        st.text("abﷺ", max_size=4),
    ),
    st.sampled_from(
        [
            (normalizers.NFKC(), {"type": "NFKC"}),
            (normalizers.NFD(), {"type": "NFD"}),
            (normalizers.Lowercase(), {"type": "Lowercase"}),
            (normalizers.BertNormalizer(), {"type": "BertNormalizer"}),
        ]
    ),
)


@given(st.lists(PARTS, max_size=4), st.text("abAİﷺ中 é", min_size=1, max_size=20))
def test_no_normaliser_makes_more_of_a_text_than_is_counted(
    parts: list[tuple[Any, dict[str, Any]]], text: str
) -> None:
    counted = growth_of({"type": "Sequence", "normalizers": [told for _, told in parts]})
    with suppress(TokenizerError), panics_told():  # the library panics where nothing is replaced
        whole = normalizers.Sequence([one for one, _ in parts]).normalize_str(text)
        assert len(whole) <= counted * (len(text) + 1)


def test_a_text_over_which_the_library_panics_is_refused_and_ends_no_thread(tmp_path: Path) -> None:
    for file in bundled_models()[MODEL].iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, tmp_path)
    replaced = {"type": "Replace", "pattern": {"Regex": "z?(?=q)"}, "content": "a"}
    parts = [replaced, {"type": "NFKC"}]
    written(tmp_path, normalizer={"type": "Sequence", "normalizers": parts})
    tokenizer = ModelTokenizer(tmp_path)
    with pytest.raises(TokenizerError, match="the tokenizer failed"):
        tokenizer.encode("q")
