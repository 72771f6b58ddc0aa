"""Talks to the disk: folders with GGUF files as people have them, by name: models that answer,
models that are listed and cannot be loaded, and files that are no model. All are small."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.gguf_files import (
    F16,
    SMALL,
    embedder,
    from_qwen3,
    gguf,
    parts,
    small,
    small_tensors,
)
from tests.harness.llama_site import TINY, tiny_gguf

Make = Callable[[Path], Any]
WHOLE = small()


@dataclass(frozen=True)
class Kind:
    """A folder: `make` writes it. `words` are said of it, and `remedy` about what to do."""

    make: Make
    words: str = ""
    remedy: str = ""


def holding(data: bytes, **others: bytes) -> Make:
    """Return what makes a folder with a GGUF file of these bytes, and other files by stem."""

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "m.gguf").write_bytes(data)
        for stem, content in others.items():
            (folder / f"{stem}.gguf").write_bytes(content)

    return make


def tiny(*, alone: bool = False, **settings: Any) -> Make:
    """Return what makes the bundled model, without a tokenizer.json if it is `alone`."""

    def make(folder: Path) -> None:
        from_qwen3(TINY, folder / "tiny.gguf", **settings)
        if not alone:
            (folder / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())

    return make


def tiny_with(*, alone: bool = False, **changed: bytes) -> Make:
    """Return what makes the bundled model with other bytes in its file's header: each key, with
    dots in place of `__`, is replaced by bytes of the same length."""

    def make(folder: Path) -> None:
        tiny(alone=alone)(folder)
        file = folder / "tiny.gguf"
        data = file.read_bytes()
        for key, value in changed.items():
            old = key.replace("__", ".").encode()
            assert old in data and len(old) == len(value), key
            data = data.replace(old, value)
        file.write_bytes(data)

    return make


def split(folder: Path, *, lacks: int | None = None, **changed: Any) -> None:
    """Make a small model in three parts."""
    folder.mkdir(parents=True)
    files = parts(
        SMALL, small_tensors(), 3, changed={k.replace("__", "."): v for k, v in changed.items()}
    )
    for number, (name, data) in enumerate(files.items(), start=1):
        if number != lacks:
            (folder / name).write_bytes(data)


def in_parts(folder: Path) -> None:
    tiny(count=3)(folder)


def with_broken_tokenizer(folder: Path) -> None:
    tiny_gguf(folder)
    (folder / "tokenizer.json").write_text('{"model": ')


def with_other_tokenizer(folder: Path) -> None:
    tiny_gguf(folder)
    (folder / "tokenizer.json").write_text(
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'
    )


def with_adapters(folder: Path) -> None:
    tiny_gguf(folder)
    (folder / "adapters").mkdir()


def without_template(folder: Path) -> None:
    tiny_with(tokenizer__chat_template=b"tokenizer.chat_templatx")(folder)


GOOD: dict[str, Kind] = {
    "whole": Kind(tiny()),
    "own-tokenizer": Kind(tiny(alone=True)),
    "in-parts": Kind(in_parts),
    "no-template": Kind(without_template),
    "with-adapters": Kind(with_adapters, "adapters/ has no effect"),
}
"""Models that answer; `words` are those of a notice."""
UNLOADABLE: dict[str, Kind] = {
    "new-architecture": Kind(tiny_with(qwen3=b"qwexy"), "qwexy"),
    "renamed-tensor": Kind(
        tiny_with(blk__3__attn_q__weight=b"blk.3.attn_x.weight"), "blk.3.attn_q"
    ),
    "lost-key": Kind(
        tiny_with(qwen3__feed_forward_length=b"qwen3.feed_forward_lengxx"), "wrong shape"
    ),
    "unknown-tokenizer": Kind(tiny(alone=True, pre="mystery"), "tokenizer"),
    "broken-tokenizer": Kind(with_broken_tokenizer, "tokenizer.json"),
    "other-tokenizer": Kind(with_other_tokenizer, "its token 0"),
}
"""Models with a correct header that cannot be loaded."""
NO_MODEL: dict[str, Kind] = {
    "empty-file": Kind(holding(b""), "the file is truncated"),
    "cut-header": Kind(holding(WHOLE[:200]), "the file is truncated"),
    "cut-data": Kind(holding(WHOLE[:-9]), "the file is truncated"),
    "zip": Kind(holding(b"PK\3\4" + WHOLE[4:]), "the file begins with b'PK"),
    "pointer": Kind(holding(b"version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
    "old-version": Kind(holding(b"GGUF" + struct.pack("<I", 1) + WHOLE[8:]), "version is 1"),
    "big-endian": Kind(holding(b"GGUF" + struct.pack(">I", 3) + WHOLE[8:]), "big-endian"),
    "lying-count": Kind(holding(WHOLE[:8] + struct.pack("<QQ", 1 << 60, 1)), "tensors; the limit"),
    "lying-text": Kind(holding(WHOLE[:24] + struct.pack("<Q", 1 << 62)), "a metadata key has"),
    "lying-shape": Kind(
        holding(gguf(SMALL, {"w": (F16, (1 << 40, 1 << 40), b"")})), "an impossible shape"
    ),
    "lying-size": Kind(holding(gguf(SMALL, {"w": (F16, (1 << 30,), b"")})), "is truncated"),
    "lying-layers": Kind(holding(small(llama__block_count=1 << 30)), "llama.block_count is"),
    "odd-name-inside": Kind(holding(small(general__architecture="A\x1b[2J B")), "architecture is"),
    "no-vocabulary": Kind(holding(small(tokenizer__ggml__tokens=None)), "no tokenizer"),
    "missing-part": Kind(lambda folder: split(folder, lacks=2), "m-00002-of-00003.gguf is missing"),
    "strange-part": Kind(
        lambda folder: split(folder, split__no=0), "so it belongs to another file"
    ),
    "renamed-part": Kind(holding(small(split__count=4)), "one of 4 parts"),
    "projector": Kind(holding(small(general__architecture="clip")), "projector", "text only"),
    "lora": Kind(holding(small(general__type="adapter")), "a LoRA adapter", "llama-export-lora"),
    "importance": Kind(holding(small(general__type="imatrix")), "an importance matrix", "itself"),
    "headless-reranker": Kind(
        holding(embedder(bert__pooling_type=4)), "no tensor cls.output.weight", "convert"
    ),
    "pooling-unknown": Kind(
        holding(embedder(bert__pooling_type=None)), "bert.pooling_type is missing", "1_Pooling"
    ),
    "two-models": Kind(holding(WHOLE, other=WHOLE), "2 GGUF files"),
    "with-projector": Kind(
        holding(WHOLE, mmproj=small(general__architecture="clip")),
        "mmproj.gguf is a projector",
        "move the projector out",
    ),
}
"""Folders that are not listed."""
