"""What a name asks for: a repository, a revision, a name of the table, or nothing that there is."""

from __future__ import annotations

import pytest

from bus.wire.errors import BadRequest
from bus.wire.ids import is_model_id
from gateway.control.pulling import (
    KNOWN_NAMES,
    PullTarget,
    demanded_repository,
    known_repository,
    names_of,
    pull_target,
)


def target(asked: str, revision: str = "") -> tuple[str, str, str]:
    found = pull_target(asked, revision, KNOWN_NAMES)
    return found.model, found.revision, found.known_as


def test_a_repository_is_asked_for_by_its_name() -> None:
    assert target("a/b") == ("a/b", "", "")
    assert target("a/b@main") == ("a/b", "main", "")
    assert target("a/b", "refs/pr/1") == ("a/b", "refs/pr/1", "")
    assert target("hf.co/a/b:latest") == ("a/b", "", "")
    assert target("https://huggingface.co/a/b/") == ("a/b", "", "")


@pytest.mark.parametrize(
    "asked",
    [
        "a/b:Q4_K_M",
        "a/b:q4_k_m",
        "hf.co/a/b:Q4-K-M",
        "https://huggingface.co/a/b:q4_K_m",
        "a/b:Q4_K_M@main",
    ],
)
def test_a_quantisation_is_part_of_the_name_in_its_canonical_form(asked: str) -> None:
    revision = "main" if "@" in asked else ""
    assert target(asked) == ("a/b:Q4_K_M", revision, "")
    assert target("a/b:My-File.gguf") == ("a/b:My-File.gguf", "", "")


def test_a_name_that_people_know_stands_for_a_repository() -> None:
    assert target("qwen3:4b") == ("mlx-community/Qwen3-4B-4bit", "", "qwen3:4b")
    assert target("Qwen3:4B@abc") == ("mlx-community/Qwen3-4B-4bit", "abc", "qwen3:4b")
    assert all(is_model_id(one) and one.count("/") == 1 for one in KNOWN_NAMES.values())


@pytest.mark.parametrize(
    ("asked", "revision", "field"),
    [
        ("nothing", "", "model"),
        ("", "", "model"),
        ("a/b/c", "", "model"),
        ("../b", "", "model"),
        ("a/..", "", "model"),
        ("hf.co/a/b:Q4:K", "", "model"),
        ("nothing:Q4_K_M", "", "model"),
        ("a/b@../../x", "", "revision"),
        ("a/b", "with blank", "revision"),
        ("a/b@one", "two", "revision"),
    ],
)
def test_what_names_nothing_is_refused_with_its_field(
    asked: str, revision: str, field: str
) -> None:
    with pytest.raises(BadRequest) as found:
        pull_target(asked, revision, KNOWN_NAMES)
    assert found.value.field == field


def test_a_setting_adds_names_and_goes_first() -> None:
    names = names_of(["mine=me/own", "qwen3:4b=me/other"])
    assert pull_target("mine", "", names) == PullTarget(
        pull_target("me/own", "", names).model, "", "mine"
    )
    assert known_repository("qwen3:4b", names) == "me/other"
    assert known_repository("qwen3:8b", names) == KNOWN_NAMES["qwen3:8b"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("mlx-community/Any-4bit", "mlx-community/Any-4bit"),
        ("MLX-Community/Any-4bit:latest", "MLX-Community/Any-4bit"),
        ("qwen3:4b", "mlx-community/Qwen3-4B-4bit"),
        ("me/own", "me/own"),
        ("me/own:q8_0", "me/own:Q8_0"),
        ("hf.co/mlx-community/Any:q4_0", "mlx-community/Any:Q4_0"),
        ("me/owned", None),
        ("mlx-community/Any-4bit@main", None),
        ("mlx-community/a/b", None),
        ("Any-4bit", None),
        ("", None),
    ],
)
def test_a_request_pulls_what_a_pattern_allows(asked: str, found: str | None) -> None:
    assert demanded_repository(asked, KNOWN_NAMES, ("mlx-community/*", "me/own")) == found
    assert demanded_repository(asked, KNOWN_NAMES, ()) is None
