"""What runners compute on, as the doctor says it: BLAS is of no matter where that is a GPU."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from conf.settings import load_settings
from gateway.cli.doctor import mlx_checks
from gateway.cli.doctor.check import Fix
from gateway.cli.doctor.mlx_checks import MlxHere, blas, idle_gpu, mlx, mlx_here


def test_mlx_is_asked_what_it_computes_on(tmp_path: Path) -> None:
    mlx_here.cache_clear()
    here = mlx_here()
    assert (here.version, here.device) == (mx.__version__, str(mx.default_device()))
    assert here.is_on_gpu == (mx.default_device() == mx.gpu)
    found = mlx(load_settings(home=tmp_path), False)
    assert found.level == "ok" and here.device in found.found


@pytest.mark.parametrize(
    ("device", "smi", "level"),
    [
        ("Device(cpu, 0)", "NVIDIA H100 80GB HBM3", "warn"),
        ("Device(gpu, 0)", "NVIDIA H100 80GB HBM3", "ok"),
        ("Device(cpu, 0)", None, "ok"),
    ],
)
def test_a_gpu_that_mlx_leaves_idle_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, smi: str | None, level: str
) -> None:
    if smi is not None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\necho '{smi}, 580.159'\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mlx_checks, "mlx_here", lambda: MlxHere("0.32.4", device))
    found = mlx(load_settings(home=tmp_path), False)
    assert found.level == level
    if level == "warn":
        assert "H100" in found.found and "mlx-cuda-13==0.32.4" in (found.remedy or "")


@pytest.mark.parametrize(
    ("driver", "build"),
    [("580.65", "mlx-cuda-13"), ("575.1", "mlx-cuda-12"), ("525", "mlx-cuda-12"), ("470.2", "")],
)
def test_the_driver_decides_which_build_is_installed(driver: str, build: str) -> None:
    found = idle_gpu("0.32.4", "0.32.4 on cpu", f"NVIDIA H100 80GB HBM3, {driver}\nother, 1\n")
    assert "H100 80GB HBM3" in found.found
    if not build:
        assert found.fix is None and driver in found.remedy
        return
    assert found.fix is not None
    remove, install = found.fix.commands
    assert "mlx-cpu" in remove and build in remove, "a build that is already there goes too"
    assert f"{build}==0.32.4" in install and "nvidia-ml-py" in install
    assert found.fix.undo[0] == remove and "mlx-cpu==0.32.4" in found.fix.undo[1]
    assert found.fix.words in found.remedy


@pytest.mark.parametrize(
    ("here", "word"),
    [
        (MlxHere("0.32.4", "Device(gpu, 0)"), "not needed: MLX computes on Device(gpu, 0)"),
        (MlxHere("0.32.4", "Device(cpu, 0)"), "prompts are slow"),
        (MlxHere(trouble="no libcuda.so.1", fix=Fix(())), "prompts are slow"),
    ],
)
def test_blas_matters_where_the_processor_multiplies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, here: MlxHere, word: str
) -> None:
    monkeypatch.setattr(mlx_checks.sys, "platform", "linux")
    monkeypatch.setattr(mlx_checks, "mlx_here", lambda: here)
    monkeypatch.setenv("SHOAL_RUNNER__BLAS", "off")
    assert word in blas(load_settings(home=tmp_path), False).found
