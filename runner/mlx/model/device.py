"""Talks to MLX: whether it computes on a GPU here, Apple's or NVIDIA's, and what it has taken."""

from __future__ import annotations

import mlx.core as mx


def on_gpu() -> bool:
    """Return whether MLX was built for a GPU that is here."""
    return mx.metal.is_available() or mx.cuda.is_available()


def taken_bytes() -> int:
    """Return the most memory that MLX has had, or what it has with what it keeps of it. May be
    called from any thread."""
    return max(mx.get_peak_memory(), mx.get_active_memory() + mx.get_cache_memory())
