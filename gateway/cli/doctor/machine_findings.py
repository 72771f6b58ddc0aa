"""Findings about a machine's sleep, clock, RDMA, Thunderbolt bridge and GPUs.

Pure: a tool's output in, facts out; facts in, a `Finding` out. Unknown text gives no facts. Formats
are those of pmset(1), systemd's `show` (NAME=VALUE) and logind.conf(5).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bus.hardware.rdma_ports import ACTIVE, DOWN, DevicePort
from bus.hardware.thunderbolt import BRIDGE, ThunderboltPort
from bus.models.gguf import DTYPE as GGUF_DTYPE
from bus.models.gguf import LLAMA_TAG
from bus.wire.accelerators import COMPUTED_BY, VENDORS, VISIBLE, Device, Vendor, device_title
from bus.wire.cards import NodeCard
from bus.wire.ids import NodeId
from gateway.cli.doctor.check import Finding
from gateway.cli.output.amounts import size

RDMA_GIGABITS = 80
"""Speed of Thunderbolt 5. Over a slower cable or port MLX can use its ring backend, but no RDMA."""
SUSPENDING = ("suspend", "hibernate", "hybrid-sleep", "suspend-then-hibernate", "sleep", "poweroff")
SLEEP_TARGETS = ("sleep.target", "suspend.target", "hibernate.target", "hybrid-sleep.target")
_AWAKE = "sudo systemctl mask " + " ".join(SLEEP_TARGETS)
_RECOVERY = (
    "shut down, hold the power button until the options show, choose Options, then Utilities, "
    "Terminal: `rdma_ctl enable`, and restart"
)


@dataclass(frozen=True, slots=True)
class MacSleep:
    """The sleep settings of a Mac.

    `after_min` is minutes of idleness, 0 for never, None if not reported. `disabled`: sleep is
    switched off altogether. `held_by` are the programs that keep the Mac awake now.
    """

    after_min: int | None
    disabled: bool
    held_by: tuple[str, ...]


def mac_sleep(pmset: str) -> MacSleep:
    """Parse the output of `pmset -g`."""
    line = re.search(r"^\s*sleep\s+(\d+)(?:\s+\(sleep prevented by (.+)\))?", pmset, re.MULTILINE)
    disabled = re.search(r"^\s*SleepDisabled\s+1\b", pmset, re.MULTILINE)
    held = line.group(2) if line else None
    return MacSleep(
        after_min=int(line.group(1)) if line else None,
        disabled=disabled is not None,
        held_by=tuple(part.strip() for part in held.split(",")) if held else (),
    )


def parse_units(text: str) -> tuple[Mapping[str, str], ...]:
    """Parse the output of `systemctl show` and similar tools: one map for each unit, in order."""
    blocks = re.split(r"\n\s*\n", text.strip())
    units = (dict(re.findall(r"^([A-Za-z]+)=(.*)$", block, re.MULTILINE)) for block in blocks)
    return tuple(unit for unit in units if unit)


def is_masked(unit: Mapping[str, str]) -> bool:
    """Return whether the unit is masked, so that it cannot be started."""
    return unit.get("LoadState") == "masked" or unit.get("UnitFileState") == "masked"


def logind_settings(*files: str) -> dict[str, str]:
    """Return the settings of logind.conf and of its drop-in files. If two files set the same name,
    the later file wins."""
    settings: dict[str, str] = {}
    for text in files:
        settings.update(re.findall(r"^\s*([A-Za-z]+)\s*=\s*(\S+)\s*$", text, re.MULTILINE))
    return settings


def mac_sleep_check(sleep: MacSleep) -> Finding:
    """Check whether a Mac falls asleep while it is idle."""
    if sleep.disabled or sleep.after_min == 0:
        return Finding("sleep", "ok", "this machine does not go to sleep on its own")
    if sleep.after_min is None:
        return Finding(
            "sleep", "warn", "`pmset -g` does not report it", "see System Settings, Energy"
        )
    text = (
        f"this machine goes to sleep after {sleep.after_min} min without a user, which stops all "
        "its ranks"
    )
    if sleep.held_by:
        text += f" (kept awake now by {', '.join(sleep.held_by)})"
    return Finding("sleep", "warn", text, "run `sudo pmset -a sleep 0 womp 1 autorestart 1`")


def linux_sleep_check(
    targets: Sequence[Mapping[str, str]], logind: Mapping[str, str], *, has_battery: bool
) -> Finding:
    """Check whether a Linux machine goes to sleep without a command from a user.

    `targets` are systemd's sleep targets (empty: systemd did not report them). `logind` has the
    settings of systemd-logind. A machine with a battery is treated as a laptop with a lid.
    """
    if targets and all(is_masked(target) for target in targets):
        return Finding("sleep", "ok", "sleep targets are masked")
    idle = logind.get("IdleAction", "ignore")
    if idle in SUSPENDING:
        after = logind.get("IdleActionSec", "30min")
        return Finding("sleep", "warn", f"logind does {idle} after {after} idle", f"`{_AWAKE}`")
    lid = logind.get("HandleLidSwitch", "suspend")
    if has_battery and lid in SUSPENDING:
        remedy = f"HandleLidSwitch=ignore in /etc/systemd/logind.conf, or `{_AWAKE}`"
        return Finding("sleep", "warn", f"closing the lid does {lid}", remedy)
    return Finding("sleep", "ok", "logind does not put this machine to sleep")


def clock_source_check(synchronized: str) -> Finding | None:
    """Check whether the clock follows a time server, from `timedatectl`'s NTPSynchronized.

    Returns None if that is neither yes nor no.
    """
    if synchronized == "yes":
        return Finding("time", "ok", "the clock is synchronized with a time server")
    if synchronized == "no":
        remedy = "run `sudo timedatectl set-ntp true`"
        return Finding("time", "warn", "the clock is not synchronized with a time server", remedy)
    return None


def rdma_check(
    enabled: bool | None,
    rdma: Sequence[DevicePort],
    cables: Sequence[ThunderboltPort],
    bridge: str | None,
    addressed: Collection[str] | None = None,
) -> Finding:
    """Check whether this Mac can use JACCL, MLX's backend for RDMA.

    `enabled` is None if the Mac has no `rdma_ctl` (macOS before 26.2). `bridge` is the name of the
    Thunderbolt Bridge's service while that service is on. `addressed` are the interfaces with an
    IPv4 address (None: unknown). MLX cannot use an RDMA port whose interface has no IPv4 address.
    """
    name = "rdma"
    if enabled is None:
        return Finding(
            name, "ok", "this macOS has no RDMA (26.2 and newer have it); groups use the ring"
        )
    if not enabled:
        return Finding(name, "warn", "RDMA is off; groups use the ring", _RECOVERY)
    active = [port.device for port in rdma if port.state == ACTIVE]
    joined = [port for port in cables if port.peers]
    down = [port.device for port in rdma if port.state == DOWN]
    if active and len(active) >= len(joined):
        bare = [name for name in active if name.removeprefix("rdma_") not in (addressed or ())]
        if bare and addressed is not None:
            first = shlex.quote(bare[0].removeprefix("rdma_"))
            alias = f"`sudo ifconfig {first} inet 169.254.10.1 netmask 255.255.0.0 alias`"
            text = f"{', '.join(bare)} active without an IPv4 address; JACCL needs one"
            return Finding(name, "warn", text, f"run {alias}, with a different address on each Mac")
        rest = f"; {', '.join(down)} without a cable" if down else ""
        return Finding(name, "ok", f"{', '.join(active)} active{rest}")
    slow = [port for port in joined if 0 < port.gigabits < RDMA_GIGABITS]
    if not rdma:
        remedy = "RDMA needs Thunderbolt 5 ports (`system_profiler SPThunderboltDataType`)"
        return Finding(name, "warn", "RDMA is enabled, but the machine has no RDMA device", remedy)
    if slow:
        ports = ", ".join(f"port {port.receptacle} at {port.gigabits} Gb/s" for port in slow)
        text = f"PORT_DOWN: the cable to another Mac is too slow for RDMA ({ports})"
        remedy = (
            f"use a Thunderbolt 5 cable ({RDMA_GIGABITS} Gb/s) and Thunderbolt 5 ports at both ends"
        )
        return Finding(name, "warn", text, remedy)
    if joined:
        off = f"; then run {_bridge_off(bridge)}" if bridge else ""
        text = f"PORT_DOWN on {', '.join(down)} although {len(joined)} cable(s) lead to a Mac"
        remedy = f"check that RDMA is enabled on the other Mac (`rdma_ctl status` there){off}"
        return Finding(name, "warn", text, remedy)
    text = f"PORT_DOWN on {', '.join(down) or 'every port'}: no cable leads to another Mac"
    remedy = "connect every pair of Macs with its own Thunderbolt 5 cable (N(N-1)/2 cables)"
    return Finding(name, "warn", text, remedy)


def bridge_check(loops: Sequence[Sequence[NodeId]], names: Mapping[str, str]) -> Finding:
    """Check whether Thunderbolt bridges of more than two nodes form a loop."""
    if not loops:
        return Finding("bridge", "ok", "the Thunderbolt bridges form no loop")
    rings = "; ".join(", ".join(names.get(node, node) for node in loop) for loop in loops)
    text = f"Thunderbolt bridges form a loop ({rings}): packets circulate forever"
    return Finding("bridge", "warn", text, f"on each of these Macs run {_bridge_off(BRIDGE)}")


def _bridge_off(service: str) -> str:
    return f"`sudo networksetup -setnetworkserviceenabled {shlex.quote(service)} off`"


def gpus(
    lacks: Mapping[Vendor, str], card: NodeCard | None, variables: Mapping[str, str]
) -> Finding:
    """Return the finding about GPUs. `lacks` has each maker of a GPU in this machine, with the
    reason why the maker's driver lists no GPU (empty: it lists one). `card` is the node card; None
    if no node runs."""
    listed = card.devices if card is not None else ()
    texts = [_title(device) for device in listed]
    makers = {device.vendor for device in listed}
    bad: list[tuple[str, str]] = []
    for vendor, why in sorted(lacks.items()):
        maker, hides = VENDORS[vendor], VISIBLE.get(vendor, "")
        if vendor in makers:
            continue
        if why and vendor == "nvidia":
            remedy = "install or repair NVIDIA's driver until `nvidia-smi` lists the GPU"
            bad.append((f"the {maker} GPU cannot be used: {why}", remedy))
        elif why and vendor == "amd":
            remedy = "load the driver (`modprobe amdgpu`), then `shoal restart`"
            bad.append((f"the {maker} GPU cannot be used: {why}", remedy))
        elif card is None or why:
            texts.append(f"{maker}{f': {why}' if why else ''}")
        elif hides in variables:
            texts.append(f"{maker}: hidden by {hides}")
        else:
            remedy = (
                f"check {hides or 'the permissions'} in the node's environment; `shoal restart`"
            )
            bad.append((f"the node does not list the {maker} GPU", remedy))
    if bad:
        return Finding("GPUs", "warn", "; ".join([*(b for b, _ in bad), *texts]), bad[0][1])
    rate = card.memory_bytes_per_s if card is not None else 0.0
    reads = f", which reads {size(rate)}/s per thread (measured)" if rate else ""
    return Finding("GPUs", "ok", "; ".join(texts) or f"none: models run on the processor{reads}")


def llama(program: Collection[str], chosen: str, card: NodeCard | None) -> Finding:
    """Return the finding about llama-server. `program` is the command that starts it, `chosen` the
    setting `runner.llama_server`, and `card` the node card (None: no node runs)."""
    name = "llama-server"
    if not program and chosen:
        remedy = "correct the setting runner.llama_server, then `shoal restart`"
        return Finding(name, "warn", f"{chosen} is not a program of this user", remedy)
    models = card.models if card is not None else ()
    ggufs = [model.model for model in models if model.dtype == GGUF_DTYPE]
    if not program:
        if not ggufs:
            return Finding(name, "ok", "not installed, and no GGUF model needs it")
        remedy = "put llama-server on PATH, or `pip install 'shoal-llm[llamacpp]'`; `shoal restart`"
        return Finding(name, "warn", f"not installed, but {ggufs[0]} needs it", remedy)
    is_library = len(program) > 1
    text = "the library of the extra llamacpp" if is_library else next(iter(program))
    if card is None:
        return Finding(name, "ok", f"{text}; start the node to check its GPU backends")
    computes = [each for each in COMPUTED_BY if f"{LLAMA_TAG}{each}" in card.backends]
    text += f"; computes on {', '.join([*(each.upper() for each in computes), 'the processor'])}"
    makers = {device.vendor for device in card.devices if not device.unified}
    idle = [each for each, maker in COMPUTED_BY.items() if maker in makers and each not in computes]
    if not idle:
        return Finding(name, "ok", text)
    maker = VENDORS[COMPUTED_BY[idle[0]]]
    remedy = (
        f"for GGUF models on the GPU, put a llama-server built for {idle[0].upper()} on PATH, or "
        "name it in runner.llama_server; then `shoal restart`"
    )
    return Finding(name, "warn", f"{text}; it has no backend for the {maker} GPU", remedy)


def _title(device: Device) -> str:
    free = "" if device.free_bytes is None else f", {size(device.free_bytes)} free"
    memory = f", {size(device.total_bytes)}{free}" if device.total_bytes else ""
    shared = ", shares the machine's memory" if device.unified else ""
    driver = f", driver {device.driver}" if device.driver else ""
    return f"{device_title(device.key)}: {device.name or 'unknown'}{memory}{shared}{driver}"
