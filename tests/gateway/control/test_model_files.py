"""What a model's files say, and what is not believed of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.control.model_files import (
    HEADERS_BYTES,
    TEXT_BYTES,
    ModelFiles,
    StoredTensor,
    files_on_disk,
    read_model_files,
)

HEADER = {
    "__metadata__": {"format": "mlx"},
    "a.weight": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]},
    "b.weight": {"dtype": "U32", "shape": [], "data_offsets": [12, 16]},
}


def weights(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "m"
    made.mkdir()
    (made / "config.json").write_text('{"hidden_size": 8}')
    (made / "chat_template.jinja").write_text("{{ messages }}")
    (made / "LICENSE").write_text("Take it.")
    (made / "model.safetensors").write_bytes(weights(HEADER))
    return made


def test_a_folder_says_what_its_files_say(folder: Path) -> None:
    files = read_model_files(folder, with_tensors=True)
    assert files == ModelFiles(
        config={"hidden_size": 8},
        template="{{ messages }}",
        license="Take it.",
        tensors=(StoredTensor("a.weight", "F16", (2, 3)), StoredTensor("b.weight", "U32", ())),
    )
    assert read_model_files(folder, with_tensors=False).tensors == ()


def test_the_older_places_of_template_and_license_are_read_too(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    (folder / "LICENSE").unlink()
    (folder / "card.toml").write_text('license = "MIT"\n')
    (folder / "config.json").write_text('{"hidden_size": 8, "limit": [0.0, Infinity]}')
    files = read_model_files(folder, with_tensors=False)
    assert (files.template, files.license) == ("old", "MIT")
    assert files.config["hidden_size"] == 8


def test_a_file_that_is_too_large_is_left_out(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("x" * (TEXT_BYTES + 1))
    (folder / "more.safetensors").write_bytes(
        (HEADERS_BYTES + 1).to_bytes(8, "little") + b"{}" + b" " * HEADERS_BYTES
    )
    files = read_model_files(folder, with_tensors=True)
    assert (files.template, files.tensors, files.license) == ("", (), "Take it.")


def test_what_is_broken_or_missing_is_left_out(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text("[1")
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text("[" * 100_000)
    (folder / "LICENSE").unlink()
    (folder / "card.toml").write_text("license = ")
    assert read_model_files(folder, with_tensors=False) == ModelFiles()
    assert read_model_files(tmp_path / "nothing", with_tensors=True) == ModelFiles()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        weights([]),
        weights({"a": {"dtype": "F16"}}),
        weights({"a": {"dtype": "F16", "shape": [-1]}}),
        weights({"a": {"dtype": "F16", "shape": [10**30]}}),
        weights({"a": {"dtype": 16, "shape": [1]}}),
    ],
)
def test_one_bad_file_of_weights_leaves_all_tensors_out(folder: Path, content: bytes) -> None:
    (folder / "more.safetensors").write_bytes(content)
    assert read_model_files(folder, with_tensors=True).tensors == ()


def test_a_link_that_leads_elsewhere_is_not_followed(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not tell")
    for name in ("LICENSE", "chat_template.jinja"):
        (folder / name).unlink()
        (folder / name).symlink_to(secret)
    os.mkfifo(folder / "LICENSE.txt")
    files = read_model_files(folder, with_tensors=False)
    assert (files.template, files.license) == ("", "")


def test_a_snapshot_of_a_cache_is_read_through_its_links(tmp_path: Path) -> None:
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "77").write_text('{"hidden_size": 4}')
    (snapshot / "config.json").symlink_to("../../blobs/77")
    assert read_model_files(snapshot, with_tensors=False).config == {"hidden_size": 4}


def test_the_files_of_a_copy_are_told_with_the_hashes_that_they_came_with(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / "adapters").mkdir(parents=True)
    (folder / "adapters" / "one").write_bytes(b"12")
    (folder / "weights").write_bytes(b"1")
    (folder / os.fsdecode(b"z\xff")).write_bytes(b"")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("hidden")
    (folder / "out").symlink_to("/etc/passwd")
    one = {"path": "adapters/one", "size_bytes": 2, "hash": ""}
    odd = {"path": "z\\udcff", "size_bytes": 0, "hash": ""}
    for said, known in (('{"files": {"weights": "abc", "adapters/one": 5}}', "abc"), ("[]", "")):
        (folder / ".shoal-origin.json").write_text(said)
        weights = {"path": "weights", "size_bytes": 1, "hash": known}
        assert files_on_disk(folder) == [one, weights, odd]
    assert files_on_disk(tmp_path / "none") == []
