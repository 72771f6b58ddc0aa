"""Talks to MLX: says whether it uses a GPU (Apple's or NVIDIA's), and how much memory it has
taken."""

from __future__ import annotations

import mlx.core as mx

LEAST_WIDTH = 32
"""The smallest number of tokens to which a prompt chunk is padded."""


def on_gpu() -> bool:
    """Return whether MLX was built for a GPU that is present."""
    return mx.metal.is_available() or mx.cuda.is_available()


def compiles_shapes() -> bool:
    """Return whether MLX prepares code for each new shape of a prompt's arrays, which it does on
    NVIDIA GPUs. The first forward pass with a new shape then takes some 100 ms longer."""
    return mx.cuda.is_available()


def taken_bytes() -> int:
    """Return MLX's peak memory in bytes. If its current memory with the buffer cache is larger,
    return that. May be called from any thread."""
    return max(mx.get_peak_memory(), mx.get_active_memory() + mx.get_cache_memory())


def bounded_width(tokens: int) -> int:
    """Return the next power of two that is at least `tokens`, and at least `LEAST_WIDTH`."""
    return max(LEAST_WIDTH, 1 << (tokens - 1).bit_length())
