"""What is taken of a hub's list, and what is not believed."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import ModelId
from worker.models.manifest import belongs
from worker.pulling.failures import retry_after_of
from worker.pulling.listing import HubListing, ListedFile, PullFailed, listing_of

COMMIT = "a" * 40
SHA = "b" * 64
WHOLE = ("config.json", "model.safetensors", "tokenizer.json")


def listed(*names: str) -> list[ListedFile]:
    return [
        ListedFile(name, 9, SHA if name.endswith(".safetensors") else None, "c" * 40)
        for name in names
    ]


def taken(*names: str) -> HubListing:
    return listing_of(ModelId("a/b"), COMMIT, listed(*WHOLE, *names))


def refused(files: list[ListedFile], commit: str = COMMIT) -> PullFailed:
    with pytest.raises(PullFailed) as found:
        listing_of(ModelId("a/b"), commit, files)
    return found.value


def test_files_that_a_model_is_loaded_from_are_taken() -> None:
    more = ("merges.txt", "chat_template.jinja", "spiece.model", "a.tiktoken")
    left = (
        "x.py",
        "model.gguf",
        "a.bin",
        ".hidden.json",
        "deep/er/x.json",
        "img.png",
        "weights.pt",
    )
    found = [file.path for file in taken(*more, *left).files]
    assert found == sorted([*WHOLE, *more])


@pytest.mark.parametrize("commit", ["main", "", "a" * 39, "../" + "a" * 37, "A" * 40])
def test_a_commit_is_one(commit: str) -> None:
    assert refused(listed(*WHOLE), commit).reason == "changed"


@pytest.mark.parametrize(
    "change",
    [
        {"size_bytes": None},
        {"size_bytes": -1},
        {"size_bytes": 1 << 50},
        {"sha256": None, "blob": None},
        {"sha256": "b" * 63},
        {"sha256": None, "blob": "z" * 40},
    ],
)
def test_a_file_without_a_size_or_a_hash_is_refused(change: dict[str, object]) -> None:
    config, weights, tokenizer = listed(*WHOLE)
    bad = dataclasses.replace(weights, **change)  # pyright: ignore[reportArgumentType]
    assert refused([config, bad, tokenizer]).reason == "changed"


def test_a_tokenizer_of_a_gigabyte_is_refused() -> None:
    files = listed(*WHOLE[:2])
    assert refused([*files, ListedFile("tokenizer.json", 1 << 30, SHA, None)]).reason == "changed"


def test_names_that_are_one_on_a_mac_are_refused() -> None:
    files = listed(*WHOLE, "Vocab.txt", "vocab.txt")
    assert "twice" in refused(files).message


def test_a_list_without_end_is_refused() -> None:
    many = listed(*(f"{n}.json" for n in range(20_001)))
    assert refused(many).reason == "changed"
    assert refused(listed(*WHOLE, *(f"{n}.json" for n in range(5_000))))


def test_shards_that_are_not_listed_are_named() -> None:
    files = listed("config.json", "tokenizer.json", "model-00001-of-00002.safetensors")
    assert "model-00002-of-00002.safetensors" in refused(files).message


NAMED = st.sampled_from(["README.md", "merges.txt", "a.json", "sub/a.json", "a b.txt", "a/b/c"])


@given(
    st.lists(NAMED, max_size=6).map(lambda names: [*dict.fromkeys(names)])
    | st.lists(st.text(max_size=40) | st.text("ab./\\~", max_size=9), max_size=3)
)
def test_no_list_names_a_place_outside(names: list[str]) -> None:
    try:
        found = taken(*names)
    except PullFailed as failure:
        assert failure.reason in ("changed", "unfit")
        return
    for file in found.files:
        assert belongs(file.path) and ".." not in file.path.split("/") and file.path[0] != "/"


def test_the_digest_is_of_exactly_these_files() -> None:
    assert taken("vocab.txt").digest == taken("vocab.txt", "x.py").digest != taken().digest


def test_when_to_come_again_is_read_in_both_ways() -> None:
    assert retry_after_of({"retry-after": "12"}, 0.0) == 12.0
    date = {"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}
    assert retry_after_of(date, 20.0) == 40.0
    assert retry_after_of({"retry-after": "soon"}, 0.0) is None
    assert retry_after_of({}, 0.0) is None
