from __future__ import annotations

import platform
from pathlib import Path

import pytest

from bus.wire.cards import NodeCard
from bus.wire.ids import NodeId
from bus.wire.topology import ports_in
from conf.settings import load_settings
from worker.__main__ import worker_settings
from worker.machine import gpu
from worker.machine.gpu import ASK_METAL, working_set_in
from worker.machine.node_card import (
    addresses,
    cannot_run,
    chip_in,
    lowest_address,
    mac_id_in,
    machine,
    machine_facts,
)

METAL_KEY, UUID = "max_recommended_working_set_size", "IOPlatformUUID"

PORTS = """
Hardware Port: Ethernet Adapter (en4)
Device: en4
Ethernet Address: 1a:2b:3c:4d:5e:6f

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 1a:2b:3c:4d:5e:70

Hardware Port: Wi-Fi
Device: en0
Ethernet Address: 1a:2b:3c:4d:5e:71

VLAN Configurations
===================
"""


def test_macos_names_of_ports_are_read() -> None:
    assert ports_in(PORTS) == {
        "en4": "Ethernet Adapter (en4)",
        "bridge0": "Thunderbolt Bridge",
        "en0": "Wi-Fi",
    }
    assert ports_in("") == {}


def test_a_processor_says_its_name() -> None:
    assert chip_in("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n") == "Some CPU @ 2 GHz"
    assert chip_in("Model\t\t: Raspberry Pi 5\n") == "Raspberry Pi 5"
    assert chip_in("") == ""


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("81559\n", 81559 << 20),
        ("24564\n24564\n", 24564 << 20),
        ("[N/A]\n", 0),
        ("NVIDIA-SMI has failed because it couldn't communicate with the driver", 0),
        ("", 0),
    ],
)
def test_the_first_gpus_memory_is_read(said: str, found: int) -> None:
    assert gpu.memory_in(said) == found


@pytest.mark.parametrize(
    ("installed", "memory_bytes", "tags"),
    [
        ((), 8 << 30, "mlx-cpu"),
        (("mlx-cuda-13",), 0, "mlx-cpu"),
        (("mlx-cuda-13",), 8 << 30, "mlx-cuda"),
    ],
)
def test_runners_compute_on_a_gpu_where_there_is_one_and_mlx_is_built_for_it(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], memory_bytes: int, tags: str
) -> None:
    monkeypatch.setattr(gpu, "has_metal", lambda: False)
    monkeypatch.setattr(gpu, "nvidia_bytes", lambda: memory_bytes)
    monkeypatch.setattr(gpu, "_is_installed", installed.__contains__)
    assert gpu.backends() == (tags,)


@pytest.mark.parametrize(
    ("files", "lacks"),
    [
        ((), "mlx"),
        (("mlx/nn/layers.py", "mlx/lib/libmlx.so", "mlx_lm/load.py"), "mlx"),
        (("mlx/core.abi3.so", "mlx_lm/load.py"), "mlx-cpu"),
        (("mlx/core.abi3.so", "mlx/lib/libmlx.so"), "mlx-lm"),
        (("mlx/core.abi3.so", "mlx/lib/libmlx.so", "mlx_lm/load.py"), ""),
    ],
)
def test_what_of_mlx_is_missing_is_seen_without_an_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: tuple[str, ...], lacks: str
) -> None:
    monkeypatch.setattr(gpu, "has_metal", lambda: False)
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert gpu.missing(lambda name: list(tmp_path.glob(name))) == lacks
    assert gpu.missing() == "" and gpu.backends(), "it is installed where tests run"
    assert (lacks in cannot_run(lacks)) and bool(cannot_run(lacks)) == bool(lacks)


def test_a_macs_working_set_is_its_operators_limit_or_else_what_metal_says() -> None:
    assert working_set_in("4096", lambda: pytest.fail("not asked")) == 4096 << 20
    assert working_set_in("0", lambda: "22906503168") == 22906503168
    assert working_set_in("", lambda: "22906503168") == 22906503168
    assert working_set_in("0", lambda: "") == 0


def test_metal_is_asked_in_python_that_runs() -> None:
    namespace: dict[str, object] = {}
    stand_in = type("core", (), {"device_info": staticmethod(lambda: {METAL_KEY: 7})})
    said: list[object] = []
    code = ASK_METAL.partition(";")[2].strip()
    exec(code, {"mx": stand_in, "print": said.append}, namespace)
    assert said == [7]


def test_a_macs_id_is_its_own_and_not_that_of_its_cables() -> None:
    said = """
    | {
    |   "IOPlatformSerialNumber" = "C02ABC"
    |   "IOPlatformUUID" = "564D9A7B-1111-2222-3333-444455556666"
    | }
    """
    found = mac_id_in(said)
    assert len(found) == 16 and found == mac_id_in(said.lower().replace("ioplatformuuid", UUID))
    assert found != mac_id_in(said.replace("6666", "6667"))
    assert mac_id_in("") == ""
    assert machine() == lowest_address(), "no Mac"


def card_here(launched_by: str = "") -> NodeCard:
    return NodeCard(
        node=NodeId("n"), name="n", slots=2, models=(), announced_at_s=1.0,
        launched_by=launched_by, **machine_facts(0),
    )  # fmt: skip


def test_this_machine_announces_what_it_is_and_where() -> None:
    card = card_here()
    assert card.ips == addresses() and card.machine == machine()
    assert any(one.medium == "loopback" for one in card.ips)
    assert card.vram_bytes == gpu.nvidia_bytes()
    assert not any(one.ip.startswith("fe80") for one in card.ips)


def test_the_card_tells_what_nodes_are_compared_by() -> None:
    card = card_here(launched_by="systemd")
    assert card.python_version == platform.python_version()
    assert card.os_version and card.mlx_lm_version
    assert card.launched_by == "systemd"


def test_who_started_the_node_is_no_setting_and_reaches_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_LAUNCHED_BY", "launchd")
    assert worker_settings(load_settings(home=tmp_path)).launched_by == "launchd"
