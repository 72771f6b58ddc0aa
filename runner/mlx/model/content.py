"""Talks to the disk: makes a key for the content of a model, without reading its weights.

Two loads of a model with equal keys compute the same KV from the same tokens. The key covers the
configuration, and the header, size and change times of every weights file. It also covers how the
model is computed, which includes the versions of libraries. This last part (`how`) must be equal on
nodes that copy KV from each other (decision 0106).
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from bus.models.kv import KvKey, files_mark, kv_key
from bus.wire.kv import KvKind
from runner.engine import EngineFacts
from runner.group.lockstep import RankFacts
from runner.mlx.adapters import AdapterBank
from runner.mlx.model.capabilities import Capabilities
from runner.mlx.model.device import on_gpu


def kv_keys(
    path: Path, precision: str, kind: KvKind, adapters: Mapping[str, str]
) -> dict[str, KvKey]:
    """Return the key under which the KV of each adapter's rows is stored, by the adapter's name.
    The empty name stands for rows without an adapter. `adapters` maps names to digests. If the
    model's files cannot be read, the result is empty."""
    try:
        mark = files_mark(path)
    except OSError:
        return {}
    digests = {"": "", **adapters}
    return {name: kv_key(mark, _how(precision, kind, digest)) for name, digest in digests.items()}


def _how(precision: str, kind: KvKind, adapter: str) -> str:
    """Return a hash of how the model is computed. `adapter` is the digest of the row's adapter.
    Nodes with different processors or library versions round differently, so they get different
    hashes and do not share KV."""
    machine = (platform.system(), platform.machine(), on_gpu())
    how = (precision, kind, adapter, machine, version("mlx"), version("mlx-lm"))
    return hashlib.blake2b(repr(how).encode(), digest_size=16).hexdigest()


def rank_facts(
    path: Path, rank: int, facts: EngineFacts, capabilities: Capabilities, adapters: AdapterBank
) -> RankFacts:
    """Return the facts that each rank of a group compares with the other ranks after loading."""
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
