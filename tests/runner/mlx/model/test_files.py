"""What is wrong with a model's files is said with the file's name, before MLX is asked."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.mlx.engine import UnloadableModel
from runner.mlx.model.files import problem_of

FILE = "model.safetensors"


def with_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Give the file a header that was changed; the values stay."""

    def spoil(folder: Path) -> None:
        content = (folder / FILE).read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + length])
        change(header)
        packed = json.dumps(header).encode()
        values = content[8 + length :]
        (folder / FILE).write_bytes(struct.pack("<Q", len(packed)) + packed + values)

    return spoil


def cut_to(size: int) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        with open(folder / FILE, "r+b") as file:
            file.truncate(size)

    return spoil


def of_family(family: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"model_type": family}))

    return spoil


def first(header: dict[str, Any]) -> dict[str, Any]:
    return next(entry for name, entry in header.items() if name != "__metadata__")


def other_folder(folder: Path) -> None:
    (folder / FILE).unlink()
    (folder / FILE).mkdir()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            cut_to(100_000),
            r"model\.safetensors is truncated: 100,000 of [0-9,]+ bytes; download it again",
        ),
        (cut_to(200), r"model\.safetensors is truncated: 200 of"),
        (cut_to(0), r"model\.safetensors is empty or truncated"),
        (lambda f: (f / FILE).write_bytes(b"x" * 9999), r"model\.safetensors is not a safetensors"),
        (lambda f: (f / FILE).write_bytes(struct.pack("<Q", 9) + b"{" * 99), "header is corrupt"),
        (other_folder, r"model\.safetensors cannot be read"),
        (with_header(lambda h: first(h).update(dtype="Q9")), r"type that MLX does not read \(Q9\)"),
        (with_header(lambda h: first(h).update(shape=[3])), "bytes for .*; 12 are required"),
        (with_header(lambda h: h.update(x=7)), "header is corrupt"),
        (with_header(lambda h: h.pop("lm_head.weight")), r"lm_head\.weight"),
        (
            of_family("brandnew"),
            rf"mlx-lm {version('mlx-lm')}.* does not support the model family 'brandnew'",
        ),
        (of_family("../llama"), "does not support the model family"),
        (of_family(None), "has no model_type"),
        (lambda f: (f / "config.json").write_text("{"), r"config\.json cannot be read"),
        (lambda f: (f / "config.json").write_text("[]"), r"config\.json cannot be read"),
    ],
)
def test_a_spoilt_model_is_refused_with_what_is_wrong(
    load: Any, model_folder: Any, tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    folder = tmp_path / "spoilt"
    shutil.copytree(model_folder("llama"), folder)
    spoil(folder)
    with pytest.raises(UnloadableModel, match=said):
        load(folder)


def test_a_file_that_is_cut_while_it_is_read_is_named(
    load: Any, model_folder: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(model_folder("llama"), folder)

    def cut(progress: Any) -> None:
        if progress.phase == "weights":
            cut_to(100_000)(folder)

    with pytest.raises(UnloadableModel, match=r"model\.safetensors is truncated"):
        load(folder, progress=cut)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400), st.booleans())
def test_no_file_makes_the_look_at_it_fail(tmp_path: Path, content: bytes, framed: bool) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    begin = struct.pack("<Q", len(content)) if framed else b""
    (tmp_path / FILE).write_bytes(begin + content)
    said = problem_of(tmp_path)
    assert said is None or said.startswith(FILE)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a"]), inner)
        ),
        max_leaves=8,
    )
)
def test_no_header_makes_the_look_at_it_fail(tmp_path: Path, header: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    packed = json.dumps({"t": header}).encode()
    (tmp_path / FILE).write_bytes(struct.pack("<Q", len(packed)) + packed)
    said = problem_of(tmp_path)
    assert said is None or said.startswith(FILE)
