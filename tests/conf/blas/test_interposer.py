"""The interposer, compiled here and preloaded before OpenBLAS, against numpy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conf.blas.choice import Choice, variables
from conf.blas.interposer import (
    ONE_ROW,
    exponential,
    interposer_in,
    make_interposer,
)
from conf.blas.preloads import NoInterposer
from tests.harness.blas_of_tests import libraries_here

ROOT = Path(__file__).resolve().parents[3]
FOUND = libraries_here()
needs_both = pytest.mark.skipif(
    not FOUND or not any(map(shutil.which, ONE_ROW.compilers)),
    reason="needs OpenBLAS and a C compiler",
)
PLAIN, TRANSPOSED = 111, 112


class Products:
    """A process with what was preloaded; `ask` has it multiply."""

    def __init__(self, preloaded: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.blas_products"],
            cwd=ROOT,
            env={**os.environ, **preloaded},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, case: dict[str, int], alpha: float, beta: float) -> dict[str, object]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"case": case, "alpha": alpha, "beta": beta}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Products]:
    made = make_interposer(tmp_path_factory.mktemp("preloads"), ONE_ROW)
    process = Products(variables(Choice(FOUND[0]), str(made)))
    yield process
    process.close()


sizes = st.integers(1, 40)
cases = st.fixed_dictionaries(
    {
        "order": st.sampled_from([101, 102]),
        "ta": st.sampled_from([PLAIN, TRANSPOSED]),
        "tb": st.sampled_from([PLAIN, TRANSPOSED]),
        "m": st.one_of(st.just(1), sizes),
        "n": st.one_of(st.just(1), sizes),
        "k": st.one_of(sizes, st.integers(100, 700)),
        "more_a": st.one_of(st.just(0), st.integers(0, 5)),
        "more_b": st.one_of(st.just(0), st.integers(0, 5)),
        "more_c": st.one_of(st.just(0), st.integers(0, 5)),
        "seed": st.integers(0, 1 << 30),
    }
)
factors = st.sampled_from([0.0, 1.0, -1.0, 0.5, 3.25])


@needs_both
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases, alpha=factors, beta=factors)
def test_products_through_the_interposer_are_what_numpy_says(
    products: Products, case: dict[str, int], alpha: float, beta: float
) -> None:
    found = products.ask(case, alpha, beta)
    assert isinstance(found["error"], float) and found["error"] < 1e-5, (case, found)
    assert found["guards"], "wrote beyond its product"
    assert found["as_sgemv"] is not False or not contiguous(case), (case, found)


def contiguous(case: dict[str, int]) -> bool:
    """Whether `cblas_sgemv` of the case's own harness goes the same way through memory."""
    return not (case["more_a"] or case["more_b"] or case["more_c"]) and not (
        case["m"] == 1 and case["n"] == 1
    )


@needs_both
@pytest.mark.parametrize("k", [192, 384, 512, 2048])
def test_one_row_of_a_model_is_bit_for_bit_what_sgemv_gives(products: Products, k: int) -> None:
    case = {"order": 101, "ta": PLAIN, "tb": TRANSPOSED, "m": 1, "n": 300, "k": k, "seed": k}
    case |= {"more_a": 0, "more_b": 0, "more_c": 0}
    assert products.ask(case, 1.0, 0.0)["as_sgemv"] is True


@needs_both
def test_without_the_interposer_the_same_case_is_not_sgemvs(tmp_path: Path) -> None:
    plain = Products(variables(Choice(FOUND[0])))
    case = {"order": 101, "ta": PLAIN, "tb": TRANSPOSED, "m": 1, "n": 300, "k": 512, "seed": 1}
    found = plain.ask(case | {"more_a": 0, "more_b": 0, "more_c": 0}, 1.0, 0.0)
    plain.close()
    assert found["as_sgemv"] is False, "the comparison shows nothing: both ways round alike"


@needs_both
def test_it_is_compiled_once_private_and_named_by_its_source(tmp_path: Path) -> None:
    folder = tmp_path / "preloads"
    first = make_interposer(folder, ONE_ROW)
    assert folder.stat().st_mode & 0o777 == 0o700 and first.stat().st_mode & 0o777 == 0o600
    made_at = first.stat().st_mtime_ns
    assert make_interposer(folder, ONE_ROW) == first and first.stat().st_mtime_ns == made_at
    source = tmp_path / "one_row.c"
    source.write_text(ONE_ROW.source.read_text() + "\n/* newer */\n")
    second = make_interposer(folder, replace(ONE_ROW, source=source))
    assert second != first and first.exists(), "another node may be preloading it"
    os.utime(first, (0, 0))
    source.write_text(ONE_ROW.source.read_text() + "\n/* newest */\n")
    third = make_interposer(folder, replace(ONE_ROW, source=source))
    assert sorted(folder.iterdir()) == sorted([second, third])


@needs_both
def test_a_file_that_others_could_have_written_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "preloads"
    made = make_interposer(folder, ONE_ROW)
    made.chmod(0o622)
    with pytest.raises(NoInterposer, match="not private to this user"):
        interposer_in(folder, ONE_ROW)
    made.chmod(0o600)
    folder.chmod(0o777)
    with pytest.raises(NoInterposer, match="not private to this user"):
        make_interposer(folder, ONE_ROW)
    folder.chmod(0o700)
    elsewhere = tmp_path / "elsewhere.so"
    made.rename(elsewhere)
    made.symlink_to(elsewhere)
    with pytest.raises(NoInterposer, match="not private to this user"):
        interposer_in(folder, ONE_ROW)


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoInterposer, match="no C compiler"):
        make_interposer(tmp_path / "preloads", ONE_ROW)


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'no dlfcn.h here' >&2; exit 1\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoInterposer, match="no dlfcn"):
        make_interposer(tmp_path / "preloads", ONE_ROW)


EXP = exponential()
needs_exp = pytest.mark.skipif(
    EXP is None or not any(map(shutil.which, EXP.compilers)),
    reason="needs an x86-64 processor with FMA and a C++ compiler",
)


def compared(preloaded: Path) -> dict[str, int]:
    """What MLX's compiled kernels give with a file preloaded, against MLX as it came."""
    command = [sys.executable, "-m", "tests.harness.fused_exp"]
    environment = {**os.environ, "LD_PRELOAD": str(preloaded)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, timeout=120, check=True
    )
    return json.loads(done.stdout)


@needs_exp
def test_the_fused_exp_has_the_bits_of_mlx_as_it_came(tmp_path: Path) -> None:
    assert EXP is not None
    found = compared(make_interposer(tmp_path / "preloads", EXP))
    assert found["tried"] > 1_000_000
    assert found["exp"] == 0 and found["erf"] == 0, found


@needs_exp
def test_compiled_kernels_call_what_is_preloaded(tmp_path: Path) -> None:
    """One that is wrong by a bit is seen: the comparison shows something."""
    assert EXP is not None
    source = tmp_path / "wrong.cpp"
    text = EXP.source.read_text()
    wrong = "template <> Simd<float, 1> exp(Simd<float, 1> x) { return 42.0f + x.value; }"
    source.write_text(text.replace("template Simd<float, 1> exp(Simd<float, 1>);", wrong))
    found = compared(make_interposer(tmp_path / "preloads", replace(EXP, source=source)))
    assert found["exp"] > found["tried"] // 2, found


@needs_exp
def test_another_mlx_has_its_exp_compiled_anew(tmp_path: Path) -> None:
    assert EXP is not None
    assert replace(EXP, made_for="0.0.1").file_name != EXP.file_name
