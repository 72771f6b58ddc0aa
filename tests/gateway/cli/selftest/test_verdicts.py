"""The rules of the self-test: what passes, and which smallest fault fails each line."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from bus.wire.accelerators import AcceleratorReading, HardwareReading, UntoldFigures
from bus.wire.ids import NodeId
from gateway.cli.selftest.machine_lines import assertions_in
from gateway.cli.selftest.node_checks import jaccl_line
from gateway.cli.selftest.verdicts import (
    Bill,
    SelftestLine,
    SensorFacts,
    agreement,
    bill_lines,
    expected_of,
    fit_of,
    greedy_lines,
    kv_lines,
    sampling_lines,
    sensor_lines,
)

STEPS = [[[5, -0.1], [6, -3.0]], [[7, -0.1], [8, -0.11]], [[9, -0.5], [4, -2.0]]]


def outcomes(lines: Any) -> dict[str, str]:
    return {line.part: line.outcome for line in lines}


def test_tokens_may_differ_only_after_a_near_tie() -> None:
    assert agreement([([5, 7, 9], STEPS)], 0.02).is_good
    tie = agreement([([5, 8, 1], STEPS)], 0.02)
    assert (tie.equal, tie.compared, len(tie.ties)) == (1, 3, 1) and not tie.wrong
    for wrong in ([6, 7, 9], [5, 7, 4], [5, 7], [1, 1, 1], []):
        assert not agreement([(wrong, STEPS)], 0.02).is_good


def test_rows_that_all_end_in_early_ties_show_too_little() -> None:
    assert not agreement([([5, 8, 1], STEPS)] * 4, 0.02).is_good


def test_parity_fails_with_one_wrong_token_and_skips_a_model_without_batches() -> None:
    rows = {"rows": [STEPS, STEPS], "version": "1"}
    right = {"precision": "float32", "plain": rows, "alone": [[5, 7, 9]] * 2, "batch": None}
    assert outcomes(greedy_lines(right)) == {"alone": "passed", "batch": "not applicable"}
    wrong = right | {"batch": [[5, 7, 9], [5, 7, 4]]}
    failed = [line for line in greedy_lines(wrong) if line.outcome == "failed"]
    assert [line.part for line in failed] == ["batch"] and failed[0].advice


LOGPROBS = [-0.2 * at for at in range(40)]


def drawn(sampling: dict[str, float], other: dict[str, float] | None = None) -> list[list[int]]:
    """Counts of 2,048 correct draws, or of draws with `other` settings."""
    shares = expected_of(LOGPROBS, other or sampling)
    chance = random.Random(1)
    picked = chance.choices(list(shares), list(shares.values()), k=2048)
    return [[token, n] for token, n in Counter(picked).items()]


@pytest.mark.parametrize(
    ("sampling", "other"),
    [
        ({"temperature": 0.8}, {"temperature": 1.0}),
        ({"temperature": 1.0}, {"temperature": 1.0, "top_k": 12}),
        ({"temperature": 1.0, "top_k": 12}, {"temperature": 1.0, "top_k": 13}),
        ({"temperature": 1.0, "top_p": 0.8}, {"temperature": 1.0, "top_p": 0.9}),
        ({"temperature": 1.0, "min_p": 0.1}, {"temperature": 1.0, "min_p": 0.05}),
    ],
)
def test_frequencies_fit_their_own_settings_and_no_others(sampling: Any, other: Any) -> None:
    rows = [[1, 2], [3, 4]]
    for counts, outcome in ((drawn(sampling), "passed"), (drawn(sampling, other), "failed")):
        document = {
            "twice": [rows, rows],
            "next": LOGPROBS,
            "draws": [{"sampling": sampling, "counts": counts}],
        }
        assert outcomes(sampling_lines(document)) == {"seeds": "passed", "frequencies": outcome}


def test_a_test_of_few_bins_shows_nothing() -> None:
    assert not fit_of({1: 0.5, 2: 0.5}, {1: 50, 2: 50}).is_good


@pytest.mark.parametrize("second", [[[1, 2], [3, 5]], [[3, 4], [3, 4]]])
def test_seeds_must_repeat_and_differ(second: Any) -> None:
    first = [[1, 2], [3, 4]] if second[1] == [3, 5] else second
    assert outcomes(sampling_lines({"twice": [first, second], "next": [], "draws": []})) == {
        "seeds": "failed"
    }


def reuse(**changes: Any) -> dict[str, Any]:
    row = {"length": 64, "tokens": [5, 7, 9], "logprobs": [-0.1, -0.1, -0.5]}
    measured = {
        "precision": "float32",
        "held": "full",
        "trims": True,
        "fresh": STEPS,
        "reused": [row],
        "batch": [5, 7, 9],
        "bytes_per_token": 8,
    }
    return measured | changes


@pytest.mark.parametrize(
    "changes",
    [
        {"reused": [{"length": 64, "tokens": [5, 7, 4], "logprobs": [-0.1, -0.1, -2.0]}]},
        {"reused": [{"length": 64, "tokens": [5, 7, 9], "logprobs": [-0.1, -0.2, -0.5]}]},
        {"batch": [5, 7, 4]},
        {"plain": [[[6, -0.1], [5, -2.0]], *STEPS[1:]]},
    ],
)
def test_kv_fails_if_a_reused_prefix_or_a_batch_changes_the_answer(changes: Any) -> None:
    assert outcomes(kv_lines({"kinds": {"full": reuse()}})) == {"full": "passed"}
    assert outcomes(kv_lines({"kinds": {"full": reuse(**changes)}})) == {"full": "failed"}


def test_fewer_bits_may_change_little_and_are_skipped_where_a_model_has_none() -> None:
    far = [[[6, -0.1], [5, -3.0]], *STEPS[1:]]
    row = {"length": 64, "tokens": [6, 7, 9], "logprobs": [-0.1, -0.1, -0.5]}
    kinds = {
        "full": reuse(),
        "8bit": reuse(held="8bit", fresh=far, reused=[row], batch=None),
        "4bit": reuse(),
    }
    expected = {"full": "passed", "8bit": "failed", "4bit": "not applicable"}
    assert outcomes(kv_lines({"kinds": kinds})) == expected


def bill(**changes: int) -> Bill:
    figures = {
        "need_bytes": 1_000,
        "weights_bytes": 600,
        "kv_bytes": 4_000,
        "context_tokens": 100,
        "device_bytes": 700,
        "process_bytes": 800,
        "loaded_bytes": 600,
        "kv_measured_bytes": 2_000,
        "kv_tokens": 50,
    }
    return Bill(**(figures | changes))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"need_bytes": 500}, "peak"),
        ({"need_bytes": 2_000}, "peak"),
        ({"process_bytes": 1_001}, "peak"),
        ({"weights_bytes": 300}, "weights"),
        ({"kv_bytes": 2_000}, "KV"),
        ({"kv_measured_bytes": 0}, "KV"),
    ],
)
def test_memory_fails_if_the_bill_is_half_or_double_or_exceeded(
    changes: dict[str, int], part: str
) -> None:
    assert set(outcomes(bill_lines(bill())).values()) == {"passed"}
    assert outcomes(bill_lines(bill(**changes)))[part] == "failed"


def test_a_prompt_that_was_not_read_is_judged_by_its_peak_alone() -> None:
    assert outcomes(bill_lines(bill(kv_tokens=0, process_bytes=1_200))) == {"peak": "failed"}


NODE = {
    "memory_total_bytes": 16 * 10**9,
    "memory_available_bytes": 8 * 10**9,
    "cpu_ratio": 0.5,
    "load_1m": 1.5,
    "disk_total_bytes": 10**12,
    "disk_free_bytes": 10**11,
}
GPU = AcceleratorReading(
    vendor="apple", device="0x1", name="Apple M3", utilisation_ratio=0.2, gtt_used_bytes=10**9
)


def sensed(hardware: HardwareReading | None, **node: float) -> dict[str, str]:
    facts = SensorFacts(NODE | node, hardware, 16 * 10**9, 8, has_gpu=True)
    return outcomes(sensor_lines(facts))


def hardware(**fields: Any) -> HardwareReading:
    return HardwareReading(node=NodeId("n1"), measured_at_s=1.0, **fields)


def test_sane_readings_pass_and_missing_sensors_do_not_apply() -> None:
    untold = (UntoldFigures(source="macos", why="only root can read them"),)
    assert sensed(hardware(accelerators=(GPU,), untold=untold)) == {
        "memory": "passed",
        "load": "passed",
        "disk": "passed",
        "temperature": "not applicable",
        "power": "not applicable",
        "GPU": "passed",
    }


@pytest.mark.parametrize(
    ("part", "fields", "node"),
    [
        ("memory", {}, {"memory_total_bytes": 8e9}),
        ("memory", {}, {"memory_available_bytes": 17e9}),
        ("load", {}, {"cpu_ratio": 1.5}),
        ("disk", {}, {"disk_free_bytes": 2e12}),
        ("temperature", {"cpu_temperature_c": 150.0}, {}),
        ("power", {"cpu_power_w": 9_000.0}, {}),
        ("GPU", {}, {}),
        ("GPU", {"accelerators": (GPU.model_copy(update={"utilisation_ratio": None}),)}, {}),
    ],
)
def test_a_reading_that_no_machine_has_fails(part: str, fields: Any, node: Any) -> None:
    assert sensed(hardware(**fields), **node)[part] == "failed"


def test_no_hardware_reading_fails() -> None:
    assert sensed(None)["hardware"] == "failed"


def test_jaccl_does_not_apply_to_other_systems_than_macos() -> None:
    line = jaccl_line({"jaccl": False}, "linux")
    assert isinstance(line, SelftestLine)
    assert line.outcome == "not applicable" and "Thunderbolt RDMA" in line.text


def test_the_processes_that_keep_a_mac_awake_are_those_that_pmset_lists() -> None:
    listed = """Assertion status system-wide:
   PreventUserIdleSystemSleep     1
Listed by owning process:
   pid 812(caffeinate): [0x0000a1b200018f2e] 00:00:02 PreventUserIdleSystemSleep named: "caffeinate command-line tool"
   pid 97(powerd): [0x0000000d00088001] 02:11:08 PreventDisplaySleep named: "Powerd - Prevent"
"""  # noqa: E501
    assert assertions_in(listed) == {812}
    assert assertions_in("") == set()
