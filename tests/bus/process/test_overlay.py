"""The variables that a runner takes from a file when it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervisor.options import ServerOptions

from bus.process.zygote import OVERLAY, overlaid, variables_in, write_variables
from bus.process.zygote.forking import ForkingOptions


def test_variables_of_the_file_replace_those_of_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "variables.json"
    write_variables(file, {"THREADS": "1", "KERNELS": "Old"})
    write_variables(file, {"THREADS": "2"}, repeats=False)
    assert variables_in(file) == {"THREADS": "2", "KERNELS": None}
    env = {OVERLAY: str(file), "THREADS": "1", "KERNELS": "Old", "HOME": "/h"}
    assert overlaid(env) == {OVERLAY: str(file), "THREADS": "2", "HOME": "/h"}
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"variables": 1}'])
def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "variables.json"
    if content is not None:
        file.write_text(content)
    env = {OVERLAY: str(file), "THREADS": "1"}
    assert overlaid(env) == env and overlaid({"THREADS": "1"}) == {"THREADS": "1"}


def test_supervisord_starts_a_program_with_the_variables_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "variables.json"
    write_variables(file, {"THREADS": "2"})
    started: list[dict[str, str]] = []
    monkeypatch.setattr(ServerOptions, "execve", lambda _, __, ___, env: started.append(env))
    monkeypatch.setattr("bus.process.zygote.forking.reset_signals", lambda _: None)
    options = ForkingOptions.__new__(ForkingOptions)
    options._mask = set()
    options.execve("/bin/true", ["true"], {OVERLAY: str(file), "THREADS": "1"})
    assert started == [{OVERLAY: str(file), "THREADS": "2"}]
