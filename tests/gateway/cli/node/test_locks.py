from __future__ import annotations

import fcntl
import os
from pathlib import Path

from bus.process.endpoints import Endpoints
from bus.process.installation.tree import running_code
from bus.service import role_lock
from conf.paths import find_paths
from gateway.cli.node.locks import UNTOLD, describe_mix, mix, running_codes


def test_alike_processes_are_no_mix_and_others_are_named_by_their_code() -> None:
    assert describe_mix({"bus": "1/a", "worker": "1/a"}, "1/a") == ""
    said = describe_mix({"bus": "1/a", "worker": "1/b", "master": UNTOLD}, "1/b")
    assert "(1/b): bus: 1/a; master: an older version" in said
    assert "worker" not in said


def test_processes_tell_their_code_in_their_locks(tmp_path: Path) -> None:
    paths = find_paths(tmp_path / "home")
    paths.runtime.mkdir(parents=True)
    (paths.runtime / "gone.role").write_text("1\n0/dead\n")
    with open(paths.runtime / "bus.role", "w") as old:
        old.write(f"{os.getpid()}\n")
        old.flush()
        fcntl.flock(old, fcntl.LOCK_EX)
        with role_lock(Endpoints(str(paths.runtime)), "worker"):
            assert running_codes(paths) == {"bus": UNTOLD, "worker": running_code()}
            assert "bus: an older version" in mix(paths)
    assert running_codes(paths) == {}
