"""The measurement, on libraries made for it: right, wrong, crashing, slow ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bus.wire.errors import ConfigError
from conf.blas import measure as measuring
from conf.blas.__main__ import BELIEVED_S
from conf.blas.choice import Library
from conf.blas.interposer import ONE_ROW
from conf.blas.libraries import fingerprint, usable_cores
from conf.blas.measure import known_blas, measure, prepared_blas
from conf.paths import find_paths, make_folders
from conf.settings import Settings, load_settings
from tests.harness.blas_of_tests import libraries_here
from worker.machine.blas_repeats import RepeatTiming

COMPILER = next(filter(None, map(shutil.which, ONE_ROW.compilers)), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

HEAD = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void gemm(int m, int n, int k, const float *a, const float *b, float *c) {
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int l = 0; l < k; l++) sum += a[i * k + l] * b[j * k + l];
            c[i * n + j] = sum;
        }
}
"""
CALL = """
void cblas_sgemm(int o, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
    %s
}
void cblas_sgemv(int o, int t, int m, int n, float alpha, const float *w, int ldw, const float *x,
                 int ix, float beta, float *y, int iy) {
    gemm(1, m, n, x, w, y);
}
"""
GOOD = "gemm(m, n, k, a, b, c);"


def built(folder: Path, name: str, body: str, before: str = "") -> Library:
    source, path = folder / f"{name}.c", folder / f"lib{name}.so"
    source.write_text(HEAD + before + CALL % body)
    flags = ["-Ofast", "-march=native", "-shared", "-fPIC", "-o", str(path)]
    subprocess.run([str(COMPILER), *flags, str(source)], check=True)
    return Library(str(path), "openblas")


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests share their machine: no product counts as disturbed, and all are small."""
    probe = tmp_path_factory.mktemp("probe") / "probe.py"
    text = measuring.PROBE.read_text().replace("CALM = 0.02", "CALM = 1e9")
    probe.write_text(text.replace("INNER, OUTER = 512, 2048", "INNER, OUTER = 64, 2048"))
    monkeypatch.setattr(measuring, "PROBE", probe)
    monkeypatch.setattr(measuring, "STOLEN", 1e9)
    monkeypatch.setattr(measuring, "measure", partial(measure, deadline_s=60.0))


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A home whose measurements, shared with other homes in use, lie in a folder of its own."""
    yield tmp_path / "home"
    shutil.rmtree(find_paths(tmp_path / "home").runtime, ignore_errors=True)


def settings_for(
    home: Path, monkeypatch: pytest.MonkeyPatch, library: Library, **flags: object
) -> Settings:
    given = {f"runner.{name}": value for name, value in flags.items()}
    settings = load_settings(home=home, flags={"runner.blas": library.path, **given})
    make_folders(settings.paths)
    for name in ("measured", "preloads"):
        folder = home / name
        folder.mkdir(mode=0o700, exist_ok=True)
        monkeypatch.setattr(type(settings.paths), name, property(lambda _, at=folder: at))
    return settings


def test_what_crashes_or_multiplies_wrongly_is_not_in_the_table(
    tmp_path: Path, undisturbed: None
) -> None:
    good = built(tmp_path, "good", GOOD)
    libraries = [
        built(tmp_path, "crashes", "abort();"),
        built(tmp_path, "wrong", GOOD + "c[m * n - 1] += 3;"),
        built(tmp_path, "nothing", ""),
        good,
    ]
    table = measure(libraries, [], 1, 60.0)
    assert {one.library for one in table.measured} == {good} and not table.trouble
    (found,) = table.measured
    assert found.steady and found.seconds[256].low_s > found.seconds[1].high_s > 0
    none = measure(libraries[:3], [], 1, 60.0)
    assert not none.measured and "no BLAS library multiplies" in none.trouble


def test_products_that_depend_on_the_threads_are_told(tmp_path: Path, undisturbed: None) -> None:
    threads = "static int threads; void openblas_set_num_threads(int n) { threads = n; }"
    body = GOOD + "if (threads > 1 && m > 1) c[1] *= 1.000001f;"
    library = built(tmp_path, "threads", body, threads)
    table = measure([library], [], 2, 60.0)
    assert [(one.threads, one.steady) for one in table.measured] == [(1, True), (2, False)]


def test_a_measurement_that_takes_too_long_leaves_the_plain_choice_and_says_so(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = built(tmp_path, "slow", "sleep(30);")
    monkeypatch.setattr(measuring, "measure", partial(measure, deadline_s=0.3))
    settings = settings_for(here, monkeypatch, slow)
    outcome = prepared_blas(settings)
    assert outcome.variables == {"LD_PRELOAD": slow.path, "OPENBLAS_NUM_THREADS": "1"}
    assert "longer than 0.3 s" in outcome.trouble and outcome.remedy
    assert known_blas(settings).trouble == outcome.trouble


def test_a_measurement_is_remembered_until_the_library_is_another_file(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: None
) -> None:
    library = built(tmp_path, "good", GOOD)
    asked: list[object] = []

    def counted(*parts: object) -> measuring.Table:
        asked.append(parts)
        return measure(*parts, deadline_s=60.0)  # type: ignore[arg-type]

    monkeypatch.setattr(measuring, "measure", counted)
    settings = settings_for(here, monkeypatch, library)
    assert known_blas(settings).trouble == "not measured yet"
    first = prepared_blas(settings)
    assert prepared_blas(settings).choice == first.choice and len(asked) == 1
    assert known_blas(settings).table == first.table
    os.utime(library.path, ns=(1, 1))
    prepared_blas(settings)
    assert len(asked) == 2


def test_a_disturbed_measurement_is_repeated_by_a_later_start(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: None
) -> None:
    settings = settings_for(here, monkeypatch, built(tmp_path, "good", GOOD))
    monkeypatch.setattr(measuring, "STOLEN", -1.0)
    first = prepared_blas(settings)
    assert first.repeats and "hypervisor" in first.trouble and "by itself" in first.remedy
    monkeypatch.setattr(measuring, "STOLEN", 1e9)
    assert prepared_blas(settings).trouble == first.trouble, "a start soon after believes it"
    (file,) = (here / "measured").glob("blas-*.json")
    os.utime(file, (0, 0))
    second = prepared_blas(settings)
    assert not second.trouble and not second.repeats
    assert second.table.measured_at_s > first.table.measured_at_s


def test_of_nodes_that_are_idle_together_one_measures_again(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: None
) -> None:
    settings = settings_for(here, monkeypatch, built(tmp_path, "good", GOOD))
    monkeypatch.setattr(measuring, "STOLEN", -1.0)
    first = prepared_blas(settings)
    (file,) = (here / "measured").glob("blas-*.json")
    idle_at = file.stat().st_mtime - RepeatTiming().idle_s
    os.utime(file, (idle_at, idle_at))
    one = prepared_blas(settings, believed_s=BELIEVED_S)
    other = prepared_blas(settings, believed_s=BELIEVED_S)
    assert one.table.measured_at_s > first.table.measured_at_s
    assert other.table == one.table and other.repeats


SPIN = "while True: pass"


@pytest.mark.skipif(not libraries_here() or not hasattr(os, "sched_setaffinity"), reason="Linux")
def test_what_a_busy_core_disturbs_is_not_taken_for_a_figure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two threads and a busy program share one core: each product of two threads waits for it."""
    cores = os.sched_getaffinity(0)
    monkeypatch.setattr(measuring, "PROBE_S", 0.3)
    os.sched_setaffinity(0, {min(cores)})
    busy = subprocess.Popen([sys.executable, "-I", "-S", "-c", SPIN])
    try:
        table = measure(libraries_here()[:1], [], 2, 60.0)
    finally:
        busy.kill()
        busy.wait()
        os.sched_setaffinity(0, cores)
    assert [made.threads for made in table.measured] == [1], "CPU time of one thread is a figure"
    assert "disturbed 1 of 2" in table.trouble and table.waited > 0.0 and table.is_right


def test_off_preloads_nothing_and_a_name_without_a_file_is_refused(tmp_path: Path) -> None:
    off = load_settings(home=tmp_path, flags={"runner.blas": "off"})
    assert prepared_blas(off).choice is None and prepared_blas(off).variables == {}
    gone = load_settings(home=tmp_path, flags={"runner.blas": "/no/such.so"})
    with pytest.raises(ConfigError, match=r"runner\.blas.*no such file"):
        prepared_blas(gone)


def test_fast_without_a_compiler_goes_on_and_says_what_is_missing(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: None
) -> None:
    library = built(
        tmp_path, "slowrow", "if (m == 1) for (volatile long i = 0; i < 1000000; i++);" + GOOD
    )
    settings = settings_for(here, monkeypatch, library, parity="fast", blas_threads=1)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    outcome = prepared_blas(settings)
    assert outcome.variables["LD_PRELOAD"] == library.path
    assert "no C compiler" in outcome.trouble and "install" in outcome.remedy
    monkeypatch.setenv("PATH", str(Path(str(COMPILER)).parent))
    again = prepared_blas(settings)
    assert not again.trouble
    *interposers, preloaded = again.variables["LD_PRELOAD"].split(":")
    assert preloaded == library.path and "one-row-" in interposers[-1]
    assert {Path(one).parent for one in interposers} == {settings.paths.preloads}


def test_a_measurement_holds_for_one_machine_and_its_cores() -> None:
    libraries = libraries_here()
    known = {fingerprint(libraries, [], cores) for cores in (1, 2)}
    assert len(known) == 2 and fingerprint(libraries, ["Haswell"], 1) not in known
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
