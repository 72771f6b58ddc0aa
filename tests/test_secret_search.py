"""The search for secrets finds what was planted, in each form and wrapping, and nothing else."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import secrets
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
import zstandard

from bus.wire.codec import pack
from tests.harness.secret_search import SecretSearch

SECRET = "Zq7/Kx2+pW9vRt4LmN6aYc3="
OTHER = "a-second-secret-0123456789"


@pytest.fixture
def search() -> SecretSearch:
    return SecretSearch({"planted": SECRET, "other": OTHER})


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("inner/one.txt", content)
    return file.getvalue()


def tarred(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as opened:
        member = tarfile.TarInfo("a/member")
        member.size = len(content)
        opened.addfile(member, io.BytesIO(content))
    return file.getvalue()


FORMS: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "its beginning": lambda text: text[:10].encode(),
    "its middle": lambda text: text[7:16].encode(),
    "UTF-16": lambda text: text.encode("utf-16-le"),
    "URL": lambda text: quote(text, safe="").encode(),
    "URL, each character": lambda text: "".join(f"%{ord(one):02x}" for one in text).encode(),
    "JSON": lambda text: json.dumps({"said": text}).encode(),
    "JSON, escaped": lambda text: "".join(f"\\u{ord(one):04x}" for one in text).encode(),
    "JSON in JSON": lambda text: json.dumps(json.dumps("\n" + text)).encode(),
    "repr": lambda text: repr(text.encode()).encode(),
    "hex": lambda text: text.encode().hex().encode(),
    "HEX": lambda text: text.encode().hex().upper().encode(),
    **{
        f"base64 at {skipped}": lambda text, skipped=skipped: base64.b64encode(
            b"x" * skipped + text.encode() + b"tail"
        )
        for skipped in range(3)
    },
    "base64 of URLs": lambda text: base64.urlsafe_b64encode(text.encode()),
    "a header of a user": lambda text: base64.b64encode(f"user:{text}".encode()),
    "msgpack": lambda text: pack({"a": [1, text]}),
    "deltas": lambda text: "\n".join(json.dumps({"seq": 1, "delta": one}) for one in text).encode(),
    "server-sent deltas": lambda text: "\n\n".join(
        f"data: {json.dumps({'choices': [{'delta': {'content': text[at : at + 3]}}]})}"
        for at in range(0, len(text), 3)
    ).encode(),
    "lines": lambda text: "\n".join(text[at : at + 5] for at in range(0, len(text), 5)).encode(),
}
WRAPPINGS: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "in the midst": lambda content: b"x" * 1003 + content + b"y" * 77,
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "two frames of zstd": lambda content: b"".join(
        zstandard.ZstdCompressor().compress(one) for one in (b"first", content)
    ),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zip": zipped,
    "tar": tarred,
    "gzip in zip": lambda content: zipped(gzip.compress(content)),
    "base64 of gzip": lambda content: base64.b64encode(gzip.compress(content)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_each_form_is_found_in_each_wrapping(
    search: SecretSearch, tmp_path: Path, form: str, wrapping: str
) -> None:
    file = tmp_path / "folder" / "file"
    file.parent.mkdir()
    file.write_bytes(WRAPPINGS[wrapping](FORMS[form](SECRET)))
    found = search.in_folder(tmp_path)
    assert {one.secret for one in found} == {"planted"}
    assert all("folder/file" in one.place for one in found)


def test_what_is_not_there_is_not_found(search: SecretSearch, tmp_path: Path) -> None:
    for number in range(20):
        noise = secrets.token_bytes(50_000)
        (tmp_path / f"{number}.bin").write_bytes(noise)
        (tmp_path / f"{number}.b64").write_bytes(base64.b64encode(noise))
        (tmp_path / f"{number}.hex").write_bytes(noise.hex().encode())
    (tmp_path / "near").write_text(f"{SECRET[:6]} {SECRET[8:14]} {SECRET.swapcase()}")
    assert search.in_folder(tmp_path) == set()
    assert search.looked_at == 61


def test_rows_of_sqlite_are_read_one_by_one_and_together(
    search: SecretSearch, tmp_path: Path
) -> None:
    path = tmp_path / "rows.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("CREATE TABLE said (piece TEXT, packed BLOB)")
        file.executemany("INSERT INTO said VALUES (?, NULL)", [(one,) for one in SECRET])
        file.execute("INSERT INTO said VALUES ('', ?)", (zlib.compress(OTHER.encode()),))
        file.commit()
        found = search.in_file(path)
    assert {(one.secret, one.place.rpartition(":")[2]) for one in found} == {
        ("planted", "said.piece, all rows"),
        ("other", "said.packed!zlib"),
        ("other", "said.packed, all rows!zlib"),
    }


def test_names_links_and_arguments_are_looked_at(search: SecretSearch, tmp_path: Path) -> None:
    (tmp_path / f"of-{OTHER}").mkdir()
    (tmp_path / "link").symlink_to(f"/nowhere/{OTHER}")
    places = {one.place.partition(" /")[0] for one in search.in_folder(tmp_path)}
    assert places == {"the name of", "the link"}
    words = [sys.executable, "-c", "print(flush=True); input()", OTHER]
    program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout is not None
    program.stdout.readline()  # its arguments are there to be seen once it runs
    try:
        found = search.in_processes([psutil.Process(program.pid)])
    finally:
        program.communicate(b"\n")
    assert {one.secret for one in found} == {"other"}


def test_a_path_that_is_named_is_passed_by(search: SecretSearch, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text(OTHER)
    assert search.in_folder(tmp_path, lambda path: path.name == "kept") == set()
    assert search.in_folder(tmp_path)
