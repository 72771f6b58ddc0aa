"""How llama-server is started on GPUs, and on the processor."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bus.models.gguf import FIXED_BYTES, GgufFacts
from bus.wire.accelerators import DeviceShare, Vendor, bytes_on
from bus.wire.ids import InstanceId, ModelId
from bus.wire.messages.control import RunnerSpec
from runner.llama.child import Child, ChildEnded
from runner.llama.launch import Launch, launch_of

FACTS = GgufFacts("llama", 32, 8192, 3, 8, (1000,) * 32, "F16", 1, 10_000_000_000, "")
GB = 10**9


def share(index: int, gigabytes: float, layers: int, vendor: Vendor = "nvidia") -> DeviceShare:
    reserved = int(gigabytes * GB)
    return DeviceShare(vendor=vendor, index=index, bytes_reserved=reserved, layers=layers)


def launched(
    *devices: DeviceShare, memory: int = 0, folder: Path = Path("/x"), facts: GgufFacts = FACTS
) -> Launch:
    memory = memory or (bytes_on(devices) + FIXED_BYTES if devices else 13 * GB)
    spec = RunnerSpec(
        instance=InstanceId("i"), generation=1, rank=0, size=1, model=ModelId("m"), path="/x",
        dtype="gguf", first_layer=0, last_layer=32, context_tokens=4096, addresses=(),
        memory_limit_bytes=memory, devices=devices,
    )  # fmt: skip
    return launch_of(spec, folder / "m.gguf", facts, folder / "s.sock", 4)


def options(launch: Launch) -> dict[str, str]:
    words = launch.command(["llama-server"])
    names = ("--device", "--gpu-layers", "--split-mode", "--tensor-split", "--ctx-size")
    return {name: words[words.index(name) + 1] for name in names if name in words}


def test_without_gpus_the_processor_computes_all_layers() -> None:
    found = options(launched())
    assert (found["--device"], found["--gpu-layers"]) == ("none", "0")
    assert "--tensor-split" not in found
    assert "CUDA_VISIBLE_DEVICES" not in launched().environment({})


def test_two_gpus_get_the_layers_that_were_reserved_there() -> None:
    launch = launched(share(1, 8, 22), share(3, 4.7, 11))
    found = options(launch)
    assert found["--device"] == "CUDA0,CUDA1", "it counts the visible GPUs"
    assert (found["--gpu-layers"], found["--tensor-split"]) == ("33", "22,11")
    assert found["--split-mode"] == "layer"
    given = {"CUDA_VISIBLE_DEVICES": "7", "GGML_CUDA_ENABLE_UNIFIED_MEMORY": "1", "A": "b"}
    assert launch.environment(given) == {
        "A": "b", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,3",
    }  # fmt: skip


def test_one_gpu_of_amd_has_its_own_variable() -> None:
    launch = launched(share(2, 12.7, 33, "amd"))
    assert options(launch)["--device"] == "ROCm0"
    assert launch.environment({})["HIP_VISIBLE_DEVICES"] == "2"
    assert "GGML_CUDA_ENABLE_UNIFIED_MEMORY" not in launch.environment({})


def test_an_embedding_model_computes_each_input_at_once() -> None:
    encoder = replace(FACTS, pooling="mean", kv_bytes=(0, 0))
    decoder = replace(FACTS, pooling="last")
    for facts, rows in ((encoder, "8"), (decoder, "1")):
        words = launched(facts=facts).command(["llama-server"])
        sizes = {words[words.index(n) + 1] for n in ("--batch-size", "--ubatch-size", "--ctx-size")}
        assert "--embedding" in words and sizes == {"4096"}
        assert words[words.index("--parallel") + 1] == rows
    assert "--embedding" not in launched().command(["llama-server"])


def test_an_apu_maps_what_its_own_memory_does_not_hold() -> None:
    held = launched(share(0, 0, 0, "amd"), memory=13 * GB)
    assert options(held)["--gpu-layers"] == "33"
    assert held.environment({})["GGML_CUDA_ENABLE_UNIFIED_MEMORY"] == "1"
    whole = launched(share(0, 13 - FIXED_BYTES / GB, 0, "amd"))
    assert "GGML_CUDA_ENABLE_UNIFIED_MEMORY" not in whole.environment({})


def test_the_cache_has_what_is_reserved_beside_the_weights() -> None:
    kv = sum(FACTS.kv_bytes)
    cells = (12_744_000_000 - 11 * GB) // kv
    assert int(options(launched(share(0, 12.744, 33)))["--ctx-size"]) == min(cells, 32 * 4096)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has served engines")
def test_the_process_itself_sees_these_gpus(tmp_path: Path) -> None:
    code = (
        "import json, os, sys; print('error', json.dumps([os.environ['CUDA_VISIBLE_DEVICES'], "
        "sys.argv[sys.argv.index('--tensor-split') + 1]])); sys.exit(1)"
    )
    launch = launched(share(0, 8, 22), share(1, 4.7, 11), folder=tmp_path)
    child = Child([sys.executable, "-I", "-S", "-c", code], launch)
    try:
        with pytest.raises(ChildEnded) as raised:
            while True:
                child.check()
    finally:
        child.end()
    seen: Any = json.loads(str(raised.value).partition("error ")[2])
    assert seen == ["0,1", "22,11"]
