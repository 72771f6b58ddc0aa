"""A node has one id, whoever asks first, and however many ask at once."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.process.identity import http_token, known_node_id, node_id
from bus.wire.errors import ConfigError

ASKERS = 6
ASK = (
    "import sys; from pathlib import Path; from bus.process.identity import node_id; "
    "sys.stdin.read(1); print(node_id(Path(sys.argv[1])))"
)


def test_an_id_is_made_once_and_kept(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = node_id(state)
    assert first[0] == "n" and len(first) == 11
    assert node_id(state) == first == (state / "node-id").read_text().strip()


def test_a_token_is_made_once_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        token = http_token(tmp_path)
    finally:
        os.umask(before)
    assert len(token) > 40 and http_token(tmp_path) == token
    assert stat.S_IMODE((tmp_path / "http-token").stat().st_mode) == 0o600


def test_processes_that_start_together_read_the_same_id(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ASK, str(tmp_path / "state")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    lives = [subprocess.Popen(command, **pipes) for _ in range(ASKERS)]  # type: ignore[call-overload]
    said: list[str] = [""] * ASKERS

    def ask(number: int) -> None:
        said[number] = lives[number].communicate("!", timeout=60)[0].strip()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(ASKERS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert len(set(said)) == 1 and said[0].startswith("n")


def test_nobody_ever_sees_the_file_without_its_content(tmp_path: Path) -> None:
    seen: set[str] = set()
    for turn in range(200):
        state = tmp_path / str(turn)
        state.mkdir()
        over = threading.Event()

        def look(state: Path = state, over: threading.Event = over) -> None:
            while not over.is_set():
                if (state / "node-id").exists():
                    seen.add(str(len((state / "node-id").read_text())))

        looker = threading.Thread(target=look)
        looker.start()
        node_id(state)
        over.set()
        looker.join()
    assert seen <= {"12"}


def test_a_file_that_a_power_cut_left_empty_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "node-id").touch()
    made = node_id(tmp_path)
    assert made and node_id(tmp_path) == made
    assert not os.path.exists(tmp_path / "node-id.draft")


@pytest.mark.parametrize(("name", "make"), [("node-id", node_id), ("http-token", http_token)])
def test_no_flipped_bit_is_another_word_and_the_way_back_is_told(
    name: str, make: Callable[[Path], str], tmp_path: Path
) -> None:
    word, file = make(tmp_path), tmp_path / name
    whole, witness = file.read_bytes(), (tmp_path / f"{name}.sum").read_bytes()
    for at, flipped in enumerate(_flips(whole)):
        file.write_bytes(flipped)
        if flipped.decode(errors="replace").strip() == word:
            continue  # the newline: white space of another kind
        with pytest.raises(ConfigError, match=f"{name} is damaged"):
            make(tmp_path)
        assert file.read_bytes() == flipped, f"bit {at}: nothing is made anew by itself"
    file.write_bytes(whole)
    for flipped in _flips(witness):
        (tmp_path / f"{name}.sum").write_bytes(flipped)
        assert make(tmp_path) == word, "the word is whole"
    assert (tmp_path / f"{name}.sum").read_bytes() == witness
    file.unlink()
    assert make(tmp_path) != word, "who removes the file wants another"


def test_a_word_that_an_older_version_kept_is_taken_and_known_from_then_on(tmp_path: Path) -> None:
    (tmp_path / "node-id").write_text("n0123456789\n")
    assert known_node_id(tmp_path) == node_id(tmp_path) == "n0123456789"
    (tmp_path / "node-id").write_text("n0123456788\n")
    with pytest.raises(ConfigError, match="write n0123456789 into it"):
        known_node_id(tmp_path)


def _flips(data: bytes) -> list[bytes]:
    flipped: list[bytes] = []
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        flipped.append(bytes(changed))
    return flipped
