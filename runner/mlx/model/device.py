"""Talks to MLX: whether it uses a GPU (Apple's or NVIDIA's), and its peak memory."""

from __future__ import annotations

import mlx.core as mx


def on_gpu() -> bool:
    """Return whether MLX was built for a GPU that is present."""
    return mx.metal.is_available() or mx.cuda.is_available()


def compiles_shapes() -> bool:
    """Return whether MLX prepares code for each new shape of a prompt's attention, as it does on
    NVIDIA's GPUs. The first use of a shape then takes some 100 ms."""
    return mx.cuda.is_available()


def taken_bytes() -> int:
    """Return MLX's peak memory in bytes, or its current memory including its buffer cache if that
    is more. May be called from any thread."""
    return max(mx.get_peak_memory(), mx.get_active_memory() + mx.get_cache_memory())
