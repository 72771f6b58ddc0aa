"""What `shoal doctor` says of GPUs, and of llama-server's backends for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bus.wire.accelerators import Device, Vendor
from bus.wire.cards import ModelCard, NodeCard
from gateway.cli.doctor.machine_checks import nvidia_trouble
from gateway.cli.doctor.machine_findings import gpus, llama

RTX = Device(
    vendor="nvidia", index=0, name="RTX 4090", driver="580.1",
    total_bytes=24_000_000_000, free_bytes=20_000_000_000,
)  # fmt: skip
APU = Device(vendor="amd", index=0, name="Strix Halo", total_bytes=512 << 20, unified=True)
GGUF = ModelCard.model_construct(model="mine", dtype="gguf")


def card(*devices: Device, **facts: Any) -> NodeCard:
    given: dict[str, Any] = {"backends": ("mlx-cpu", "llamacpp-cpu"), "models": (), **facts}
    return NodeCard.model_construct(devices=devices, **given)


def test_listed_gpus_are_told_with_their_memory_and_driver() -> None:
    finding = gpus({"nvidia": "", "amd": ""}, card(RTX, APU), {})
    assert finding.level == "ok"
    assert finding.found == (
        "NVIDIA GPU 0: RTX 4090, 24.0 GB, 20.0 GB free, driver 580.1; "
        "AMD GPU 0: Strix Halo, 536.9 MB, shares the machine's memory"
    )
    assert gpus({}, card(), {}).found.startswith("none")


@pytest.mark.parametrize(
    ("lacks", "variables", "level", "words"),
    [
        ({"nvidia": "nvidia-smi is not on PATH"}, {}, "warn", "cannot be used: nvidia-smi is not"),
        ({"nvidia": ""}, {}, "warn", "the node does not list the NVIDIA GPU"),
        ({"nvidia": ""}, {"CUDA_VISIBLE_DEVICES": ""}, "ok", "hidden by CUDA_VISIBLE_DEVICES"),
        ({"amd": "no driver (amdgpu)"}, {}, "warn", "the AMD GPU cannot be used: no driver"),
        ({"intel": "no driver (i915 or xe)"}, {}, "ok", "Intel: no driver"),
    ],
)
def test_a_gpu_that_is_not_listed_has_its_reason(
    lacks: dict[Vendor, str], variables: dict[str, str], level: str, words: str
) -> None:
    finding = gpus(lacks, card(), variables)
    assert finding.level == level and words in finding.found
    assert bool(finding.remedy) is (level != "ok")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo NVIDIA H200", ""),
        ("echo No devices were found; exit 6", "nvidia-smi failed: No devices were found"),
        ("echo broken >&2; exit 9", "nvidia-smi failed: broken"),
        (None, "nvidia-smi is not on PATH"),
    ],
)
def test_what_nvidia_smi_answers(
    script: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_trouble() == words


def test_llama_server_is_held_against_the_gpus() -> None:
    program = ("/usr/bin/llama-server",)
    cuda = card(RTX, backends=("mlx-cuda", "llamacpp-cuda", "llamacpp-cpu"))
    assert llama(program, "", cuda).found.endswith("computes on CUDA, the processor")
    idle = llama(program, "", card(RTX))
    assert idle.level == "warn" and "no backend for the NVIDIA GPU" in idle.found
    assert "built for CUDA" in idle.remedy
    library = llama(("python", "-m", "xllamacpp"), "", card(RTX))
    assert library.level == "warn" and library.found.startswith("the library of the extra")
    assert llama(program, "", card(APU)).level == "ok"
    assert llama(program, "", None).level == "ok"


def test_a_missing_llama_server_matters_if_a_model_needs_it() -> None:
    assert llama((), "", card()).level == "ok"
    missing = llama((), "", card(models=(GGUF,)))
    assert missing.level == "warn" and "mine needs it" in missing.found
    wrong = llama((), "/no/llama-server", card())
    assert wrong.level == "warn" and wrong.found.startswith("/no/llama-server")
