"""The library that forwards to scipy-openblas32, built for both machines and preloaded here."""

from __future__ import annotations

import json
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.blas import libraries as finding
from conf.blas.choice import Choice, Library, variables
from conf.blas.forwarding import MACHINES, NAMES, PREFIX, forwarding_library
from conf.blas.libraries import find_libraries, find_package, make_forwarders
from conf.blas.preloads import NoInterposer

PACKAGE = find_package()
needs_package = pytest.mark.skipif(PACKAGE is None, reason="scipy-openblas32 is made for Linux")
FUNCTIONS = """
import ctypes, json, sys
files = [line.split() for line in open("/proc/self/maps")]
files = [(*(int(end, 16) for end in line[0].split("-")), line[-1]) for line in files]
def file_of(name):
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    return next(file for first, last, file in files if first <= address < last)
import mlx.core as mx
matrix = mx.array([[4.0, 1.0], [1.0, 3.0]])
product = (matrix @ mx.linalg.inv(matrix, stream=mx.cpu)).tolist()
values = mx.linalg.eigvalsh(matrix, stream=mx.cpu).tolist()
names = sys.argv[1].split()
print(json.dumps([[file_of(name) for name in names], product, values]))
"""


def forwarder(folder: Path) -> Library:
    (library,) = [one for one in find_libraries("auto", folder) if one.source]
    make_forwarders([library])
    return library


def undefined_in(library: Path) -> set[str]:
    """The symbols that an ELF library takes from others."""
    data = library.read_bytes()
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, sections_at + size * i) for i in range(count)
    ]
    names: set[str] = set()
    for _, kind, _, _, at, length, linked, *_ in sections:
        texts_at = sections[linked][4]
        for entry in range(at, at + length, 24) if kind == 11 else ():
            name, _, _, section = struct.unpack_from("<IBBH", data, entry)
            if section == 0:
                start = texts_at + name
                names.add(data[start : data.index(b"\0", start)].decode())
    return names


@pytest.mark.skipif(sys.platform != "linux", reason="MLX brings its own BLAS on Linux alone")
def test_every_function_that_mlx_takes_from_a_blas_is_forwarded() -> None:
    import importlib.util

    spec = importlib.util.find_spec("mlx")
    assert spec is not None and spec.submodule_search_locations
    (libmlx,) = [
        p for place in spec.submodule_search_locations for p in Path(place).rglob("libmlx.so")
    ]
    undefined = undefined_in(libmlx)
    wanted = {
        n for n in undefined if n.startswith("cblas_") or (n.endswith("_") and n[0] in "sdcz")
    }
    assert "cblas_sgemm" in wanted and wanted <= set(NAMES)


@needs_package
def test_a_preloaded_forwarder_multiplies_for_mlx(tmp_path: Path) -> None:
    library = forwarder(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", FUNCTIONS, " ".join(NAMES)],
        env={**os.environ, **variables(Choice(library))},
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    files, product, values = json.loads(done.stdout)
    assert set(files) == {library.path} and Path(library.path).stat().st_size < 8192
    assert product == [pytest.approx([1, 0], abs=1e-5), pytest.approx([0, 1], abs=1e-5)]
    assert values == pytest.approx([(7 - 5**0.5) / 2, (7 + 5**0.5) / 2], abs=1e-5)


@needs_package
def test_a_forwarder_is_written_once_and_one_that_others_could_have_written_is_refused(
    tmp_path: Path,
) -> None:
    library = forwarder(tmp_path / "preloads")
    path = Path(library.path)
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.stat().st_ino
    assert forwarder(tmp_path / "preloads") == library and path.stat().st_ino == before
    path.chmod(0o622)
    with pytest.raises(NoInterposer, match="not private to this user"):
        make_forwarders([library])


def test_a_function_that_the_library_lacks_is_not_forwarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "libscipy_openblas.so"
    package.write_bytes(b"\0".join([b"", b"scipy_cblas_sgemm", b"scipy_cblas_sgemv2", b""]))
    machine = platform.machine() if platform.machine() in MACHINES else "x86_64"
    monkeypatch.setattr(platform, "machine", lambda: machine)
    path = tmp_path / "preloads" / "openblas-1.so"
    make_forwarders([Library(str(path), "openblas", str(package))])
    assert path.read_bytes() == forwarding_library(str(package), ["cblas_sgemm"], machine)


@pytest.mark.parametrize("machine", MACHINES)
@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    folder=st.text("abc /", max_size=300),
)
def test_each_jump_reads_the_address_that_its_relocation_sets(
    machine: str, names: list[str], folder: str
) -> None:
    file = forwarding_library(f"/{folder}/lib.so", names, machine)
    assert struct.unpack_from("<H", file, 18) == (MACHINES[machine],)
    segments = [struct.unpack_from("<IIQQQQQQ", file, 64 + 56 * i) for i in range(4)]
    read, written, dynamic = segments[:3]
    assert read[5] + written[5] <= len(file) + 64 and written[3] % (1 << 16) == written[2] % (
        1 << 16
    )
    tags = dict(struct.unpack_from("<QQ", file, dynamic[2] + 16 * i) for i in range(10))
    for i, name in enumerate(names):
        address, info, _ = struct.unpack_from("<QQq", file, tags[7] + 24 * i)
        assert written[3] + dynamic[5] <= address <= written[3] + written[5] - 8
        assert symbol(file, tags, info >> 32)[0] == PREFIX + name
        exported, at = symbol(file, tags, 1 + len(names) + i)
        assert exported == name and read_by(machine, file, at) == address


def symbol(file: bytes, tags: dict[int, int], number: int) -> tuple[str, int]:
    name, *_, at, _ = struct.unpack_from("<IBBHQQ", file, tags[6] + 24 * number)
    start = tags[5] + name
    return file[start : file.index(b"\0", start)].decode(), at


def read_by(machine: str, file: bytes, at: int) -> int:
    """The address from which a jump takes its target."""
    if machine == "x86_64":
        assert file[at + 4 : at + 6] == b"\xff\x25"
        return at + 10 + struct.unpack_from("<i", file, at + 6)[0]
    _, adrp, ldr, jump = struct.unpack_from("<IIII", file, at)
    assert jump == 0xD61F0200 and adrp & 0x9F00001F == 0x90000010 and ldr & 0xFFC003FF == 0xF9400210
    pages = (adrp >> 5 & 0x7FFFF) << 2 | adrp >> 29 & 3
    return ((at + 4 >> 12) + pages << 12) + (ldr >> 10 & 0xFFF) * 8


def test_without_the_package_there_is_no_forwarder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "PACKAGE", "no_such_package")
    assert not [one for one in find_libraries("auto", tmp_path) if one.source]
