"""The child that compiles a model's kernels: it leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import psutil

from runner.mlx.model.kernels import KernelCache
from tests.harness.nodes import eventually


def test_a_child_that_has_ended_is_reaped_though_nobody_asks(tmp_path: Path) -> None:
    before = {one.pid for one in psutil.Process().children()}
    kernels = KernelCache(tmp_path, weights_bytes=1)
    kernels.fill()  # there is no model: the child ends with an error

    def gone() -> bool:
        return {one.pid for one in psutil.Process().children()} <= before

    assert not gone()
    eventually(gone, 60, "the child was reaped")
    kernels.close()
