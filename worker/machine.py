"""Talks to the operating system: what this node is and how much memory it has free now."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

import psutil

from bus.cards import ModelCard, NodeCard
from bus.ids import NodeId


def free_bytes() -> int:
    """Memory that can be taken now without swapping."""
    return psutil.virtual_memory().available


def has_metal() -> bool:
    """Whether runners compute on Apple's GPU here."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def node_card(
    node: NodeId,
    name: str,
    *,
    slots: int,
    memory_bytes: int,
    models: tuple[ModelCard, ...],
    weights_addresses: tuple[str, ...],
    announced_at_s: float,
) -> NodeCard:
    """This node's announcement. `memory_bytes` 0 stands for all that the machine has."""
    total = psutil.virtual_memory().total
    return NodeCard(
        node=node,
        name=name,
        platform=f"{sys.platform}-{platform.machine()}",
        cores=psutil.cpu_count() or 1,
        memory_bytes=min(total, memory_bytes) if memory_bytes else total,
        backends=("mlx-metal",) if has_metal() else ("mlx-cpu",),
        mlx_version=_version("mlx"),
        shoal_version=_version("shoal"),
        slots=slots,
        models=models,
        weights_addresses=weights_addresses,
        announced_at_s=announced_at_s,
    )


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
