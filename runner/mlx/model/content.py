"""Talks to the disk: a key for the content of a model, without reading its weights.

Two loads with the same key compute the same KV from the same tokens. The key covers the
configuration, the header, size and change times of every weights file, how the model is computed,
and the versions of the libraries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from bus.wire.kv import KvKind
from runner.engine import EngineFacts
from runner.group.lockstep import RankFacts
from runner.mlx.adapters import AdapterBank
from runner.mlx.model.capabilities import Capabilities
from runner.mlx.model.device import on_gpu

HEADER_BYTES = 1 << 20


def kv_keys(
    path: Path, precision: str, kind: KvKind, adapters: Mapping[str, str]
) -> dict[str, str]:
    """Return the keys of a model's rows, by the name of their adapter (empty: none). `adapters`
    maps names to digests. Without a readable model there are none."""
    try:
        digests = {"": "", **adapters}
        return {name: kv_key(path, precision, kind, digest) for name, digest in digests.items()}
    except OSError:
        return {}


def kv_key(path: Path, precision: str, kind: KvKind, adapter: str = "") -> str:
    """Return the key of the KV that the model in `path` computes, 32 hexadecimal digits. `adapter`
    is the digest of the row's adapter. Raises OSError.

    A file whose status was changed counts as another file. A copy may keep the size and the
    modification time of the file that it replaces, but not the time of the change.
    """
    content = hashlib.blake2b(digest_size=16)
    content.update((path / "config.json").read_bytes())
    for file in sorted(path.glob("*.safetensors")):
        seen = file.stat()
        marks = (file.name, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)
        content.update(repr(marks).encode())
        with file.open("rb") as opened:
            content.update(opened.read(HEADER_BYTES))
    how = (precision, kind, adapter, on_gpu(), version("mlx"), version("mlx-lm"))
    content.update(repr(how).encode())
    return content.hexdigest()


def rank_facts(
    path: Path, rank: int, facts: EngineFacts, capabilities: Capabilities, adapters: AdapterBank
) -> RankFacts:
    """Return what a rank compares with the other ranks after its load."""
    return RankFacts(
        rank=rank,
        config=hashlib.sha256((path / "config.json").read_bytes()).hexdigest(),
        precision=str(facts.extra["dtype"]),
        weights_bytes=facts.weights_bytes,
        memory_limit_bytes=facts.memory_limit_bytes,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        kv_bytes_fixed=facts.kv_bytes_fixed,
        context_tokens=facts.context_tokens,
        vocabulary=facts.vocabulary,
        batches_ragged=facts.batches_ragged,
        groups=capabilities.groups,
        slabs=capabilities.slabs,
        adapters=tuple((name, adapters.digests[name]) for name in adapters.names),
    )
