"""The child that compiles a model's kernels: it leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from runner.mlx.model import kernels
from runner.mlx.model.kernels import KernelCache, Outlook
from tests.harness.nodes import eventually


def test_a_child_that_has_ended_is_reaped_though_nobody_asks(tmp_path: Path) -> None:
    before = {one.pid for one in psutil.Process().children()}
    cache = KernelCache(tmp_path, weights_bytes=1)
    cache.fill()  # there is no model: the child ends with an error

    def gone() -> bool:
        return {one.pid for one in psutil.Process().children()} <= before

    assert not gone()
    eventually(gone, 60, "the child was reaped")
    cache.close()


def test_on_a_gpu_no_child_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(str(tmp_path))
    cache = KernelCache(tmp_path, weights_bytes=1)
    assert kernels.on_gpu() == cache.warm
    monkeypatch.setattr(kernels, "on_gpu", lambda: True)
    assert cache.warm and cache.outlook() == Outlook.WARM
