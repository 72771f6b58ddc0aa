"""Talks to MLX: whether it uses a GPU (Apple's or NVIDIA's), and its peak memory."""

from __future__ import annotations

import mlx.core as mx

LEAST_WIDTH = 32
"""The shortest width to which a chunk is padded."""


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


def bounded_width(tokens: int) -> int:
    """Return the next power of two that is at least `tokens`, and at least `LEAST_WIDTH`."""
    return max(LEAST_WIDTH, 1 << (tokens - 1).bit_length())
