from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import ModelId
from bus.wire.messages.weights import PIECE_BYTES, FileEntry, Manifest
from tests.worker.transfer.test_download import entry, files_of, manifest_for
from worker.models.manifest import belongs, manifest_of, piece_count, piece_length, problem_of
from worker.transfer.pieces import Piece, Pieces, Staged

M = ModelId("m")


@pytest.mark.parametrize(
    "path",
    ["config.json", "model-00001-of-00002.safetensors", "tokenizer.model", "card.toml",
     "chat_template.jinja", "merges.txt", "1_Pooling/config.json", "qwen.tiktoken"],
)  # fmt: skip
def test_what_a_model_is_loaded_from_belongs_to_it(path: str) -> None:
    assert belongs(path)


@given(st.text(max_size=40) | st.text("abZ09_.+=-", max_size=9).map("m{}".format))
def test_no_path_that_belongs_leads_anywhere_else(path: str) -> None:
    for name in (path, f"{path}.json", f"a/{path}.json", f"{path}/config.json"):
        if belongs(name):
            parts = PurePosixPath(name).parts
            assert 1 <= len(parts) <= 2 and "/".join(parts) == name
            assert not any(part.startswith((".", "/")) for part in parts)
            assert name.isprintable() and "\\" not in name


@given(st.integers(0, 5 * PIECE_BYTES))
def test_pieces_cover_a_file_exactly(size: int) -> None:
    lengths = [piece_length(size, index) for index in range(piece_count(size))]
    assert sum(lengths) == size
    assert all(length == PIECE_BYTES for length in lengths[:-1])
    assert all(0 < length <= PIECE_BYTES for length in lengths)


def changed(manifest: Manifest, number: int, **update: object) -> Manifest:
    files = list(manifest.files)
    files[number] = files[number].model_copy(update=update)
    return manifest.model_copy(update={"files": tuple(files)})


def test_a_manifest_is_named_by_all_of_its_content() -> None:
    manifest = manifest_for(files_of())
    assert problem_of(manifest, M) is None
    digests = {manifest.digest, manifest_for(files_of(2)).digest}
    digests.add(manifest_of(ModelId("other"), manifest.files).digest)
    assert len(digests) == 3
    assert "digest" in str(problem_of(changed(manifest, 0, sha256="0" * 64), M))
    assert "digest" in str(problem_of(changed(manifest, 0, piece_hashes=bytes(32)), M))


def test_what_is_wrong_with_a_manifest_is_said() -> None:
    files = manifest_for(files_of()).files
    manifest = manifest_of(M, files)

    def problem(*entries: FileEntry) -> str:
        return str(problem_of(manifest_of(M, entries), M))

    assert "the manifest belongs to 'm'" in str(problem_of(manifest, ModelId("x")))
    assert "do not match its size" in str(problem_of(changed(manifest, 0, size_bytes=1 << 30), M))
    backwards = manifest.model_copy(update={"files": tuple(reversed(files))})
    assert "not sorted" in str(problem_of(backwards, M))
    assert "has neither" in problem(files[0]) and "has neither" in problem(files[-1])
    assert "same on a case-insensitive disk" in problem(*files, entry("Config.json", b""))
    assert "same on a case-insensitive disk" in problem(*files, entry("config.json/a.json", b""))
    assert "same on a case-insensitive disk" in problem(*files, *files)
    many = [entry(f"f{number:05}.json", b"") for number in range(5000)]
    assert "the limit is" in problem(*files, *many)


@given(
    held=st.lists(st.booleans(), min_size=4, max_size=4),
    order=st.permutations(range(8)),
    spoilt=st.sets(st.integers(0, 3)),
)
def test_pieces_count_what_is_here_and_give_out_what_is_not(
    held: list[bool], order: list[int], spoilt: set[int]
) -> None:
    files = {"config.json": b"{}", "w.safetensors": bytes(3 * PIECE_BYTES + 5)}
    have = {"w.safetensors": bytes(held)}
    pieces = Pieces(manifest_for(files), Staged(have, 0))
    given_out: list[Piece] = []
    while (piece := pieces.next()) is not None:
        given_out.append(piece)
    missing = [n for n, there in enumerate(held) if not there]
    assert given_out == [Piece("config.json", 0), *(Piece("w.safetensors", n) for n in missing)]
    total = sum(map(len, files.values()))
    assert pieces.total_bytes - pieces.done_bytes == sum(map(pieces.length, given_out))
    for turn in order:
        piece = given_out[turn % len(given_out)]
        content = files[piece.path][piece.offset : piece.offset + PIECE_BYTES]
        assert pieces.take(piece.path, piece.offset, content + b"x") in ("bad", "known")
        assert pieces.take(piece.path, piece.offset, content) in ("new", "known")
    if set(range(len(given_out))) <= {turn % len(given_out) for turn in order}:
        assert pieces.complete and pieces.done_bytes == total
        pieces.spoil("w.safetensors", spoilt)
        again = [pieces.next() for _ in spoilt]
        assert again == [Piece("w.safetensors", n) for n in sorted(spoilt)]
        assert pieces.complete == (not spoilt)
