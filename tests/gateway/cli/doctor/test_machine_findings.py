"""Sleep, clocks, RDMA and bridges: from the tools' own words to what the doctor says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.hardware.rdma_ports import DevicePort, rdma_enabled, rdma_ports
from bus.hardware.thunderbolt import ports_in
from bus.wire.ids import NodeId
from conf.settings import load_settings
from gateway.cli.doctor import checks
from gateway.cli.doctor.machine_checks import addressed_interfaces
from gateway.cli.doctor.machine_findings import (
    SLEEP_TARGETS,
    MacSleep,
    bridge_check,
    clock_source_check,
    linux_sleep_check,
    logind_settings,
    mac_sleep,
    mac_sleep_check,
    parse_units,
    rdma_check,
)
from tests.harness.thunderbolt_samples import bus, devinfo, profile

PMSET = """System-wide power settings:
 SleepDisabled\t\t0
Currently in use:
 standby              0
 Sleep On Power Button 1
 autorestart          1
 powernap             1
 networkoversleep     0
 disksleep            10
 sleep                10 (sleep prevented by sharingd, powerd, bluetoothd)
 ttyskeepawake        1
 displaysleep         10
 tcpkeepalive         1
 womp                 1
"""
MASKED = "\n".join(f"Id={name}\nLoadState=masked\nUnitFileState=masked\n" for name in SLEEP_TARGETS)
OPEN = "\n".join(f"Id={name}\nLoadState=loaded\nUnitFileState=static\n" for name in SLEEP_TARGETS)
LOGIND = """[Login]
#IdleAction=ignore
#HandleLidSwitch=suspend
KillUserProcesses=no
"""


def test_pmset_tells_when_a_mac_sleeps_and_what_keeps_it_awake() -> None:
    assert mac_sleep(PMSET) == MacSleep(10, False, ("sharingd", "powerd", "bluetoothd"))
    assert mac_sleep(PMSET.replace("SleepDisabled\t\t0", "SleepDisabled\t\t1")).disabled
    assert mac_sleep(" sleep                0\n").after_min == 0
    assert mac_sleep("") == MacSleep(None, False, ())


@pytest.mark.parametrize(
    ("sleep", "level", "word"),
    [
        (MacSleep(0, False, ()), "ok", "does not go to sleep"),
        (MacSleep(10, True, ()), "ok", "does not go to sleep"),
        (MacSleep(10, False, ("powerd",)), "warn", "powerd"),
        (MacSleep(None, False, ()), "warn", "does not report it"),
    ],
)
def test_a_mac_that_sleeps_by_itself_is_warned_of(sleep: MacSleep, level: str, word: str) -> None:
    found = mac_sleep_check(sleep)
    assert (found.level, bool(found.remedy)) == (level, level != "ok")
    assert word in found.found


@pytest.mark.parametrize(
    ("targets", "logind", "battery", "level"),
    [
        (MASKED, "IdleAction=suspend", True, "ok"),
        (OPEN, LOGIND, False, "ok"),
        (OPEN, LOGIND, True, "warn"),
        (OPEN, "HandleLidSwitch=ignore", True, "ok"),
        (OPEN, "IdleAction = suspend\nIdleActionSec=20min", False, "warn"),
        (MASKED.replace("masked", "loaded", 1), LOGIND, True, "ok"),
        (MASKED.replace("masked", "loaded", 2), LOGIND, True, "warn"),
        ("", LOGIND, False, "ok"),
    ],
)
def test_a_linux_machine_that_sleeps_by_itself_is_warned_of(
    targets: str, logind: str, battery: bool, level: str
) -> None:
    found = linux_sleep_check(parse_units(targets), logind_settings(logind), has_battery=battery)
    assert (found.level, bool(found.remedy)) == (level, level != "ok")


def test_a_drop_in_of_logind_outdoes_what_came_before() -> None:
    assert logind_settings("IdleAction=suspend\n", "IdleAction=ignore\n") == {
        "IdleAction": "ignore"
    }
    assert logind_settings(LOGIND) == {"KillUserProcesses": "no"}


@pytest.mark.parametrize(("said", "level"), [("yes", "ok"), ("no", "warn"), ("", None)])
def test_a_clock_without_a_server_is_warned_of(said: str, level: str | None) -> None:
    found = clock_source_check(said)
    assert (found.level if found else None) == level


@pytest.mark.parametrize(
    ("said", "enabled"),
    [
        ("enabled\n", True),
        ("disabled\n", False),
        ("RDMA is disabled", False),
        ("", None),
        ("unsupported", None),
    ],
)
def test_rdma_ctl_is_understood(said: str, enabled: bool | None) -> None:
    assert rdma_enabled(said) is enabled


def test_every_port_of_every_device_is_read() -> None:
    text = devinfo(("rdma_en1", "PORT_DOWN (1)"), ("rdma_en6", "PORT_ACTIVE (4)"))
    assert rdma_ports(text) == (
        DevicePort("rdma_en1", 1, "PORT_DOWN"),
        DevicePort("rdma_en6", 1, "PORT_ACTIVE"),
    )
    assert rdma_ports("No IB devices found\n") == ()


CABLE = profile(bus(1, "D-1", "E-1"), bus(0, "D-0"))
SLOW = profile(bus(1, "D-1", "E-1", speed="40 Gb/s"), bus(0, "D-0"))
NONE = profile(bus(1, "D-1", dock=True), bus(0, "D-0"))
UP = devinfo(("rdma_en1", "PORT_DOWN (1)"), ("rdma_en6", "PORT_ACTIVE (4)"))
ALL_DOWN = devinfo(("rdma_en1", "PORT_DOWN (1)"), ("rdma_en6", "PORT_DOWN (1)"))


@pytest.mark.parametrize(
    ("status", "ports", "cables", "bridge", "level", "words"),
    [
        ("", "", "", None, "ok", "26.2"),
        ("disabled", "", CABLE, None, "warn", "rdma_ctl enable"),
        ("enabled", UP, CABLE, None, "ok", "rdma_en6 active; rdma_en1 without a cable"),
        ("enabled", "", CABLE, None, "warn", "Thunderbolt 5 ports"),
        ("enabled", ALL_DOWN, NONE, None, "warn", "no cable leads to another Mac"),
        ("enabled", ALL_DOWN, SLOW, None, "warn", "port 2 at 40 Gb/s"),
        ("enabled", ALL_DOWN, CABLE, None, "warn", "`rdma_ctl status` there"),
        ("enabled", ALL_DOWN, CABLE, "Attic Cable", "warn", "enabled 'Attic Cable' off"),
    ],
)
def test_each_state_of_rdma_has_its_own_way_out(
    status: str, ports: str, cables: str, bridge: str | None, level: str, words: str
) -> None:
    found = rdma_check(rdma_enabled(status), rdma_ports(ports), ports_in(cables), bridge)
    assert (found.level, bool(found.remedy)) == (level, level != "ok")
    assert words in found.found + found.remedy


def test_an_active_port_without_an_ipv4_address_is_of_no_use_to_jaccl() -> None:
    found = rdma_check(True, rdma_ports(UP), ports_in(CABLE), None, addressed={"en0"})
    assert found.level == "warn"
    assert "rdma_en6 active" in found.found and "ifconfig en6 inet" in found.remedy
    well = rdma_check(True, rdma_ports(UP), ports_in(CABLE), None, addressed={"en6"})
    assert well.level == "ok"


def test_every_machine_has_an_interface_with_an_ipv4_address() -> None:
    assert any(name.startswith("lo") for name in addressed_interfaces())


def test_a_second_cable_that_is_down_is_not_hidden_by_the_first() -> None:
    two = profile(bus(1, "D-1", "E-1"), bus(0, "D-0", "F-0", speed="20 Gb/s"))
    found = rdma_check(True, rdma_ports(UP), ports_in(two), None)
    assert found.level == "warn" and "port 1 at 20 Gb/s" in found.found


def test_a_ring_of_bridges_names_its_nodes() -> None:
    names = {NodeId("n1"): "attic", NodeId("n2"): "desk"}
    found = bridge_check([[NodeId("n1"), NodeId("n2"), NodeId("n3")]], names)
    assert found.level == "warn" and "attic, desk, n3" in found.found
    assert bridge_check([], names).level == "ok"


def test_a_model_folder_that_is_none_is_named(tmp_path: Path) -> None:
    """A mistyped folder would otherwise only show as models that are missing."""
    there, gone = tmp_path / "there", tmp_path / "gone"
    there.mkdir()
    home = tmp_path / "home"
    settings = load_settings(home=home, flags={"model_folders": [str(there), str(gone)]})
    found = checks.folders(settings, False)
    assert found.level == "warn" and str(gone) in found.found and str(there) not in found.found
    settings = load_settings(home=home, flags={"model_folders": [str(there)]})
    assert checks.folders(settings, False).level == "ok"


def test_records_that_were_set_aside_are_named_until_they_are_removed(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "home")
    assert checks.records(settings, False).level == "ok"
    file = settings.paths.records
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    assert checks.records(settings, False).level == "ok"
    for name in ("records.sqlite.broken-20260101T000000-0", "records.sqlite.lock"):
        file.with_name(name).write_bytes(b"")
        file.with_name(f"{name}-wal").write_bytes(b"")
    found = checks.records(settings, False)
    assert found.level == "warn" and found.found.endswith(
        ": records.sqlite.broken-20260101T000000-0"
    )
