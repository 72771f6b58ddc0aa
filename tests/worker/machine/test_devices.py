"""The GPUs of a node, from the recorded formats of `nvidia-smi`, amdgpu, i915 and llama-server."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from bus.wire.accelerators import Device, shares_memory
from tests.harness.nodes import eventually
from tests.harness.sensor_files import ARC, RADEON, add_card
from worker.machine import devices as module
from worker.machine.devices import (
    NVIDIA,
    STEADY_BYTES,
    DeviceWatch,
    amd_in,
    devices_here,
    intel_in,
    llama_tags,
    nvidia_in,
    steady,
)

TWO = """\
0, GPU-5c5b7f0e-1c6d-0e0f-8a3a-0b1c2d3e4f50, 00000000:01:00.0, NVIDIA GeForce RTX 3090, 550.54.14, 24576, 24135
1, GPU-9d9b7f0e-1c6d-0e0f-8a3a-0b1c2d3e4f51, 00000000:41:00.0, NVIDIA GeForce RTX 4090, 550.54.14, 24564, 1024
"""  # noqa: E501
LISTED = """\
ggml_cuda_init: found 2 CUDA devices:
  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes
Available devices:
  CUDA0: NVIDIA GeForce RTX 3090 (24135 MiB, 23800 MiB free)
  CUDA1: NVIDIA GeForce RTX 4090 (24080 MiB, 900 MiB free)
"""
GB = 10**9


def test_nvidias_tool_lists_every_gpu_with_its_free_memory() -> None:
    first, second = nvidia_in(TWO)
    assert first == Device(
        vendor="nvidia", index=0, name="NVIDIA GeForce RTX 3090", address="00000000:01:00.0",
        driver="550.54.14", total_bytes=24576 << 20, free_bytes=24135 << 20,
    )  # fmt: skip
    assert (second.index, second.free_bytes) == (1, 1024 << 20)


@pytest.mark.parametrize(
    "printed",
    ["", "NVIDIA-SMI has failed because it couldn't communicate with the driver", "24576\n", "x,,"],
)
def test_a_tool_that_fails_lists_no_gpu(printed: str) -> None:
    assert nvidia_in(printed) == ()


def test_memory_that_the_driver_does_not_say_is_unknown() -> None:
    (device,) = nvidia_in("0, GPU-1, 0:1, NVIDIA GB10, 580.1, [N/A], [N/A]\n")
    assert (device.total_bytes, device.free_bytes) == (0, None)


@pytest.mark.parametrize(
    ("visible", "indices"),
    [(None, [0, 1]), ("", []), ("1", [1]), ("1,0", [0, 1]), ("GPU-9d9b", [1]), ("7", [])],
)
def test_gpus_that_the_operator_hides_are_not_listed(
    visible: str | None, indices: list[int]
) -> None:
    assert [device.index for device in nvidia_in(TWO, visible)] == indices


def test_amd_gpus_are_counted_by_their_addresses(tmp_path: Path) -> None:
    add_card(tmp_path, "card1", RADEON)
    other = RADEON["uevent"].replace("03:00.0", "0c:00.0")
    asleep = {**RADEON, "uevent": other, "power/runtime_status": "suspended"}
    add_card(tmp_path, "card0", asleep)
    first, second = amd_in(tmp_path, 64 * GB)
    assert (first.address, first.index, second.index) == ("0000:03:00.0", 0, 1)
    assert first.total_bytes == 25753026560 and first.free_bytes == 25753026560 - 1234567168
    assert first.driver == "amdgpu" and not first.unified, "GTT is less than the memory"
    assert second.free_bytes is None, "a sleeping GPU is not woken"
    assert [device.index for device in amd_in(tmp_path, 64 * GB, "1")] == [1]
    assert amd_in(tmp_path, 16 * GB)[0].unified


@pytest.mark.parametrize(
    ("vram", "gtt", "memory", "shares"),
    [
        (64, 120, 64, True), (64, 63, 64, False), (64, 64, 32, False), (0, 124, 124, True),
        (24, 32, 64, False),
    ],
)  # fmt: skip
def test_an_apu_needs_more_gtt_than_vram_and_no_less_than_the_memory(
    vram: int, gtt: int, memory: int, shares: bool
) -> None:
    assert shares_memory(vram * GB, gtt * GB, memory * GB) == shares


def test_intels_gpu_without_memory_of_its_own_uses_the_machines(tmp_path: Path) -> None:
    add_card(tmp_path, "card0", ARC)
    (device,) = intel_in(tmp_path)
    assert (device.vendor, device.unified, device.free_bytes) == ("intel", True, None)
    (tmp_path / "sys/class/drm/card0/lmem_total_bytes").write_text("17095983104\n")
    (device,) = intel_in(tmp_path)
    assert (device.total_bytes, device.unified) == (17095983104, False)


def test_llama_servers_backends_are_those_of_gpus_that_are_there() -> None:
    nvidia = nvidia_in(TWO)
    assert llama_tags(LISTED, nvidia) == ("llamacpp-cuda",)
    assert llama_tags(LISTED, ()) == ()
    assert (
        llama_tags("Available devices:\n  Vulkan0: llvmpipe (16000 MiB, 1 MiB free)\n", nvidia)
        == ()
    )
    assert llama_tags("", nvidia) == ()
    both = llama_tags("  ROCm0: AMD Radeon (24560 MiB, 1 MiB free)\n" + LISTED, nvidia)
    assert both == ("llamacpp-cuda",)


def test_a_little_change_of_free_memory_is_not_announced() -> None:
    before = nvidia_in(TWO)
    little = tuple(
        device.model_copy(update={"free_bytes": (device.free_bytes or 0) - 1000})
        for device in before
    )
    assert steady(before, little) is before
    much = (
        before[0].model_copy(update={"free_bytes": (before[0].free_bytes or 0) - STEADY_BYTES}),
        before[1],
    )
    assert steady(before, much) is much
    assert steady(before, before[:1]) == before[:1] and steady((), before) is before


def test_all_gpus_of_a_machine_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_card(tmp_path, "card1", RADEON)
    asked: list[tuple[str, ...]] = []

    def ask(*command: str) -> str:
        asked.append(command)
        return TWO

    found = devices_here(tmp_path, ask, {"CUDA_VISIBLE_DEVICES": "0"})
    assert [device.key for device in found] == [("nvidia", 0), ("amd", 0)]
    assert asked == [NVIDIA]
    monkeypatch.setattr(module.sys, "platform", "darwin")
    assert devices_here(tmp_path, ask, {}) == ()


def test_a_watch_lists_gpus_and_asks_llama_server_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 600.0)
    asked: list[tuple[str, ...]] = []
    free = [24135]
    looked = threading.Semaphore(0)

    def look() -> tuple[Device, ...]:
        looked.release()
        return nvidia_in(TWO.replace("24135", str(free[0])))

    def ask(*command: str, **_: Any) -> str:
        asked.append(command)
        return LISTED

    watch = DeviceWatch(("/x/llama-server",), look, ask)
    try:
        eventually(lambda: watch.tags, 10, "it has looked")
        assert len(watch.devices) == 2 and watch.devices[0].free_bytes == 24135 << 20
        free[0] = 4000
        watch.hurry_after(("loading",))
        eventually(lambda: watch.devices[0].free_bytes == 4000 << 20, 10, "it looks again")
        assert asked == [("/x/llama-server", "--list-devices")]
    finally:
        watch.close()
    library = DeviceWatch(("python", "-m", "runner.llama.program"), look, ask)
    try:
        eventually(lambda: library.devices, 10, "it has looked")
        assert library.tags == () and len(asked) == 1, "the library computes on the processor"
    finally:
        library.close()
