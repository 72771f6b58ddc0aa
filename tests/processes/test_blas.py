"""What real runners multiply by: as the first start found it, and as `doctor` says."""

from __future__ import annotations

import json
import re
import shutil
import sys

import psutil
import pytest

from bus.process.zygote import OVERLAY_FILE, write_variables
from conf.blas.interposer import ONE_ROW
from conf.settings import load_settings
from tests.harness.blas_of_tests import libraries_here
from tests.harness.nodes import Node, running_node, shoal

FOUND = libraries_here()
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not FOUND, reason="OpenBLAS is missing"
)


def variables(node: Node) -> dict[str, str]:
    return psutil.Process(node.runner()[1]).environ()


def mapped(node: Node) -> str:
    return "\n".join(one.path for one in psutil.Process(node.runner()[1]).memory_maps())


def doctor(node: Node) -> dict[str, str]:
    done = shoal("doctor", "--json", "--home", str(node.home), env=node.env)
    found = json.loads(done.stdout)
    return next(one for one in found["checks"] if one["name"] == "BLAS")


def test_a_node_runs_with_what_was_measured_and_doctor_says_what_it_gains(node: Node) -> None:
    told, finding = variables(node), doctor(node)
    answer = node.chat("Say hello.", max_tokens=8)
    assert answer.status_code == 200, answer.text
    assert "one-row" not in told["LD_PRELOAD"]
    assert finding["found"].startswith(("OpenBLAS (", "MKL ("))
    if finding["level"] == "ok":
        assert re.search(r"; exact [0-9.]+ x one thread at 1 row, ", finding["found"])
    else:
        assert finding["remedy"]


@pytest.mark.proof
@pytest.mark.skipif(not any(map(shutil.which, ONE_ROW.compilers)), reason="no C compiler")
def test_with_fast_one_row_goes_its_own_way_and_answers_stay_right() -> None:
    """Where sgemv pays; elsewhere the runner has no interposer, and says the same."""
    count = "Count from 1 to 5."
    with running_node() as node:
        exact = node.chat(count, max_tokens=24).json()["choices"][0]["message"]["content"]
    with running_node(SHOAL_RUNNER__PARITY="fast") as node:
        preloaded, finding, files = variables(node)["LD_PRELOAD"], doctor(node), mapped(node)
        fast = node.chat(count, max_tokens=24).json()["choices"][0]["message"]["content"]
        own = load_settings(home=node.home).paths.preloads
    assert ("one row by sgemv" in finding["found"]) == ("one-row-" in preloaded), finding
    if "one-row-" in preloaded:
        interposers = preloaded.split(":")[:-1]
        assert all(one.startswith(f"{own}/") and one in files for one in interposers)
    assert fast == exact


@pytest.mark.proof
def test_off_preloads_nothing() -> None:
    with running_node(SHOAL_RUNNER__BLAS="off") as node:
        told = variables(node)
        assert node.chat("Say hello.", max_tokens=4).status_code == 200
        assert "off" in doctor(node)["found"]
    assert "LD_PRELOAD" not in told


@pytest.mark.proof
def test_a_model_that_is_loaded_after_a_repeated_measurement_uses_its_result() -> None:
    with running_node(SHOAL_RUNNER__SPARE="false") as node:
        before = variables(node)
        file = node.home / "state" / OVERLAY_FILE
        newer = {"LD_PRELOAD": before["LD_PRELOAD"], "OPENBLAS_THREAD_TIMEOUT": "21"}
        write_variables(file, newer, repeats=False, files=[])
        shoal("stop", "shoal-tiny", "--home", str(node.home), env=node.env)
        assert node.chat("Say hello.", max_tokens=4).status_code == 200
        after = variables(node)
    assert "OPENBLAS_THREAD_TIMEOUT" not in before and "OPENBLAS_NUM_THREADS" in before
    assert after["OPENBLAS_THREAD_TIMEOUT"] == "21" and "OPENBLAS_NUM_THREADS" not in after
