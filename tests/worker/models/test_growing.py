"""Files that grow, and the notes of their pieces: over a real folder, against a naive record."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.messages.weights import PIECE_BYTES
from worker.models.files import GrowingFiles, grown_bytes, is_locked, try_lock

SIZES = {"a.json": 0, "b/c.safetensors": 2 * PIECE_BYTES + 5, "d.json": 7}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "spoil", "forget", "right", "again", "cut", "link"]),
        st.sampled_from(sorted(SIZES)),
        st.integers(0, 2),
    ),
    max_size=20,
)


def pieces(name: str) -> int:
    return -(-SIZES[name] // PIECE_BYTES)


@given(STEPS)
def test_what_is_noted_is_what_was_written_and_what_was_cut_is_begun_anew(
    steps: list[tuple[str, str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        files = GrowingFiles(folder, SIZES)
        noted = {name: bytearray(pieces(name) + 1) for name in SIZES}
        for name in SIZES:
            assert (
                files.begin(name) == noted[name] and files.path(name).stat().st_size == SIZES[name]
            )
        for what, name, index in steps:
            is_piece = index < pieces(name)
            if what == "write" and is_piece:
                end = min(PIECE_BYTES, SIZES[name] - index * PIECE_BYTES)
                files.write(name, index, b"x" * end)
                noted[name][index] = 1
            elif what == "spoil" and is_piece:
                files.spoil(name, [index])
                noted[name][index] = 0
            elif what == "forget":
                files.forget(name)
                noted[name][:] = bytes(len(noted[name]))
            elif what == "right":
                files.found_right(name)
                noted[name][-1] = 1
            elif what == "again":
                files = GrowingFiles(folder, SIZES)
            elif what == "cut" and SIZES[name]:
                os.truncate(files.path(name), SIZES[name] - 1)
                assert not files.fits(name)
                noted[name][:] = bytes(len(noted[name]))
            elif what == "link" and SIZES[name]:
                files.path(name).unlink()
                files.path(name).symlink_to("/etc/hostname")
                noted[name][:] = bytes(len(noted[name]))
            assert files.begin(name) == noted[name]
        lacking = sum(one[:-1].count(0) for one in noted.values())
        whole = sum(SIZES.values())
        assert grown_bytes(folder) == (max(0, whole - lacking * PIECE_BYTES), whole)


def test_a_folder_is_locked_for_as_long_as_the_process_lives(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    code = (
        "import sys, pathlib; from worker.models.files import try_lock;"
        "print(try_lock(pathlib.Path(sys.argv[1])), flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-P", "-c", code, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline().strip() != "None"
        assert is_locked(tmp_path) and try_lock(tmp_path) is None
        process.kill()
    assert not is_locked(tmp_path)
    lock = try_lock(tmp_path)
    assert lock is not None
    os.close(lock)
