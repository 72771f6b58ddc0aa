"""Talks to MLX: whether it computes on a GPU here, Apple's or NVIDIA's."""

from __future__ import annotations

import mlx.core as mx


def on_gpu() -> bool:
    """Return whether MLX was built for a GPU that is here."""
    return mx.metal.is_available() or mx.cuda.is_available()
