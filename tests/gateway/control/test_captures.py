"""What a capture is made of: files within bounds, one archive, no secrets, turns on a disk."""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from bus.wire.codec import pack
from bus.wire.errors import BadMessage
from gateway.control.captures import (
    KeptCaptures,
    Machine,
    Missing,
    NodeCapture,
    NotReached,
    Remover,
    SeenProcess,
    archive_of,
    capture_of,
    packed_capture,
)
from gateway.control.captures.archive import FILE_BYTES, NODE_BYTES
from gateway.control.captures.kept import AT_A_TIME, CLAIM_S, KEPT_S, CaptureRefused
from gateway.control.captures.machine import LOG_BYTES, LOGS_BYTES, memory_of
from gateway.control.captures.secrets import secrets_of

SECRET = "hush-7f3a91c2 ü/+"


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        files = {one.name: tar.extractfile(one) for one in tar.getmembers()}
        return {name: file.read() for name, file in files.items() if file is not None}


def manifest_of(archive: bytes) -> dict[str, Any]:
    return json.loads(members(archive)["shoal-capture/manifest.json"])


def packed(**fields: Any) -> bytes:
    whole: dict[str, Any] = {
        "node": "n1",
        "name": "desk",
        "files": {},
        "missing": [],
        "stopped": [],
        **fields,
    }
    return zlib.compress(pack(whole))


def test_an_archive_has_a_folder_for_each_node_and_says_what_is_missing() -> None:
    one = NodeCapture("n1", "desk")
    one.add("node.json", b"{}")
    one.lack("stacks/bus.txt", "it was frozen")
    one.stopped = ["bus (pid 7)"]
    gone = NotReached("n2", "box", "down", "node box is not connected: silent")
    archive = archive_of([one, gone], {"format": 1}, 5.0)
    assert members(archive)["shoal-capture/desk/node.json"] == b"{}"
    assert manifest_of(archive) == {
        "format": 1,
        "nodes": [
            {
                "node": "n1", "name": "desk", "reached": True, "folder": "desk",
                "files": ["node.json"], "stopped": ["bus (pid 7)"],
                "missing": [{"what": "stacks/bus.txt", "why": "it was frozen"}],
            },
            {"node": "n2", "name": "box", "reached": False, "why": "down",
             "message": "node box is not connected: silent"},
        ],
    }  # fmt: skip


def test_nodes_of_one_name_have_folders_of_their_own() -> None:
    captures = [NodeCapture("n1", "../my box"), NodeCapture("n2", "../my box")]
    for one in captures:
        one.add("a.txt", one.node.encode())
    found = members(archive_of(captures, {}, 0.0))
    assert found["shoal-capture/my-box-n1/a.txt"] == b"n1"
    assert found["shoal-capture/my-box-n2/a.txt"] == b"n2"


def test_a_file_that_is_too_long_and_one_without_room_are_named() -> None:
    one = NodeCapture("n1", "desk")
    one.add("long", b"x" * (FILE_BYTES + 1))
    assert len(one.files["long"]) == FILE_BYTES and one.missing[0].what == "long"
    for count in range(NODE_BYTES // FILE_BYTES):
        one.add(f"f{count}", b"x" * FILE_BYTES)
    last = f"f{NODE_BYTES // FILE_BYTES - 1}"
    assert last not in one.files
    assert one.missing[-1] == Missing(last, "left out: the node's capture reached its limit")
    assert sum(map(len, one.files.values())) <= NODE_BYTES


def test_a_capture_travels_as_it_is() -> None:
    one = NodeCapture("n1", "desk", {"logs/a.log": b"\x00\xff"}, [Missing("x", "y")], ["bus"])
    assert capture_of(packed_capture(one)) == one


@pytest.mark.parametrize(
    "sent",
    [
        b"no zlib",
        packed()[:-3],
        zlib.compress(b"x" * (2 * NODE_BYTES + 1)),
        zlib.compress(pack([1, 2])),
        packed(files={"../../etc/passwd": b""}),
        packed(files={"/etc/passwd": b""}),
        packed(files={"a/../../b": b""}),
        packed(files={"a": "text"}),
        packed(missing=[["only one"]]),
    ],
)
def test_what_another_node_sends_is_held_to_names_and_bounds(sent: bytes) -> None:
    with pytest.raises(BadMessage):
        capture_of(sent)


# --- secrets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("behind", range(4))
@pytest.mark.parametrize("encoded", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_is_taken_out_plain_and_in_base64_wherever_it_stands(
    before: int, behind: int, encoded: Any
) -> None:
    remover = Remover([SECRET])
    whole = b"p" * before + SECRET.encode() + b"q" * behind
    assert SECRET.encode() not in remover.cleaned(b"token=" + whole)
    told = remover.cleaned(b"token=" + encoded(whole) + b";")
    assert b"[removed]" in told
    # what is left of the value are at most the bytes that share a character with what is around it
    assert len(told.replace(b"[removed]", b"")) <= len(b"token=;") + 12


def test_a_secret_is_taken_out_of_json_and_urls() -> None:
    text = json.dumps({"a": SECRET}).encode() + b"?k=hush-7f3a91c2%20%C3%BC%2F%2B"
    assert Remover([SECRET]).cleaned(text) == b'{"a": "[removed]"}?k=[removed]'


def test_what_is_secret_is_told_by_the_names_of_variables_and_by_key_files() -> None:
    environment = {
        "OPENAI_API_KEY": "sk-provider",
        "SHOAL_API_KEYS": '["sk-first", "sk-second"]',
        "HF_TOKEN": "hf_abcdef",
        "SHOAL_CLUSTER_KEY_FILE": "/home/ann/key",
        "HTTPS_PROXY": "http://ann:pass-word@proxy:3128",
        "PATH": "/usr/bin:/bin",
        "KEY_OF_FEW": "true",
    }
    found = secrets_of(environment, ["current: c29tZSBsb25nIGtleSB0ZXh0\nold:\n"])
    assert {"sk-provider", "sk-first", "sk-second", "hf_abcdef", "pass-word"} <= found
    assert "c29tZSBsb25nIGtleSB0ZXh0" in found
    assert not found & {"/home/ann/key", "/usr/bin:/bin", "true", "current", "current:"}


# --- the machine -----------------------------------------------------------------------------


def test_logs_are_told_by_their_last_whole_lines(tmp_path: Path) -> None:
    lines = [f"line {count} {'x' * 50}\n" for count in range(LOG_BYTES // 50)]
    (tmp_path / "bus.log").write_text("".join(lines))
    (tmp_path / "worker.log").write_text("one\n")
    found = dict(Machine("", str(tmp_path)).log_ends())
    assert found["worker.log"] == b"one\n"
    end = found["bus.log"]
    assert isinstance(end, bytes) and len(end) <= LOG_BYTES
    assert end.startswith(b"line ") and end.endswith(lines[-1].encode())


def test_of_many_logs_those_written_last_are_there_and_the_others_are_named(
    tmp_path: Path,
) -> None:
    many = LOGS_BYTES // LOG_BYTES + 2
    for count in range(many):
        path = tmp_path / f"runner-{count:02}.log"
        path.write_text("x" * (LOG_BYTES - 1) + "\n")
        os.utime(path, (1000 + count, 1000 + count))
    found = list(Machine("", str(tmp_path)).log_ends())
    assert [name for name, told in found if isinstance(told, Missing)] == [
        "runner-01.log",
        "runner-00.log",
    ]
    assert found[0][0] == f"runner-{many - 1:02}.log"


def test_memory_of_a_process_that_is_gone_is_missing_with_the_systems_word() -> None:
    ((what, told),) = memory_of(seen(2**22 + 1), "linux")
    assert (what, type(told)) == ("smaps", Missing)


def test_each_tool_of_macos_that_cannot_run_has_its_own_error() -> None:
    found = dict(memory_of(seen(os.getpid()), "darwin"))
    assert list(found) == ["vmmap", "footprint", "sample"]
    for name, told in found.items():
        # there is no such program here, unless this is a Mac
        assert isinstance(told, bytes) or name in told.why


def seen(pid: int) -> SeenProcess:
    return SeenProcess("bus", pid, "running", "running", "")


# --- turns -----------------------------------------------------------------------------------


def aged(folder: Path, name: str, age_s: float) -> None:
    at = (folder / name).stat().st_mtime - age_s
    os.utime(folder / name, (at, at))


def test_one_process_makes_a_capture_and_each_hands_it_out(tmp_path: Path) -> None:
    first, second = KeptCaptures(tmp_path / "c"), KeptCaptures(tmp_path / "c")
    assert first.claimed("capture-1") and not second.claimed("capture-1")
    assert second.read("capture-1") is None
    first.write("capture-1", b"all")
    assert second.read("capture-1") == b"all"
    second.forget("capture-1")
    assert first.read("capture-1") is None and not first.claimed("capture-1")
    assert {one.stat().st_mode & 0o077 for one in (tmp_path / "c").iterdir()} == {0}


def test_only_so_many_captures_are_under_way(tmp_path: Path) -> None:
    kept = KeptCaptures(tmp_path)
    for count in range(AT_A_TIME):
        assert kept.claimed(f"capture-{count}")
    with pytest.raises(CaptureRefused, match="this node is making other captures"):
        kept.claimed("another")
    assert not kept.claimed("capture-0")
    kept.write("capture-0", b"")
    assert kept.claimed("another")


def test_a_claim_whose_process_died_holds_up_nobody_and_goes(tmp_path: Path) -> None:
    kept = KeptCaptures(tmp_path)
    for count in range(AT_A_TIME):
        kept.claimed(f"capture-{count}")
        aged(tmp_path, f"capture-{count}.claim", CLAIM_S + 1)
    assert kept.claimed("another")
    aged(tmp_path, "capture-0.claim", KEPT_S + 1)
    kept.write("late", b"")
    aged(tmp_path, "late.capture", KEPT_S + 1)
    assert kept.claimed("one-more")
    assert not (tmp_path / "capture-0.claim").exists() and kept.read("late") is None


def test_a_disk_that_takes_nothing_keeps_no_capture_back(tmp_path: Path) -> None:
    kept = KeptCaptures(tmp_path)
    assert kept.claimed("capture-1")
    (tmp_path / "capture-1.part").mkdir()  # nothing can be written there
    kept.write("capture-1", b"all")
    assert kept.read("capture-1") == b"all" and not kept.claimed("capture-1")
    kept.forget("capture-1")
    assert kept.read("capture-1") is None


@pytest.mark.parametrize("name", ["../x", "a/b", "A", "", "x" * 65, "a.capture"])
def test_a_name_stays_within_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(CaptureRefused):
        KeptCaptures(tmp_path).claimed(name)
    KeptCaptures(tmp_path).forget(name)
    assert list(tmp_path.iterdir()) == []
