from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor.options import ServerOptions  # pyright: ignore[reportMissingTypeStubs]

from bus.wire.errors import ConfigError
from conf.paths import find_paths, make_folders
from conf.ports import HIGHEST_BASE_PORT, PORTS, SPAN, port_of
from conf.settings import load_settings
from conf.supervisord import SERVICES, render


@pytest.fixture(autouse=True)
def clean_runtime(tmp_path: Path) -> Iterator[None]:
    """Runtime folders lie outside of the home; those that a test made go with it."""
    yield
    for home in (tmp_path, *(path for path in tmp_path.iterdir() if path.is_dir())):
        shutil.rmtree(find_paths(home).runtime, ignore_errors=True)


def read_back(folder: Path, text: str) -> dict[str, object]:
    path = folder / "supervisord.conf"
    path.write_text(text)
    options = ServerOptions()
    options.realize(["-c", str(path)])
    return {
        f"{group.name}:{process.name}": process
        for group in options.process_group_configs
        for process in group.process_configs
    }


def test_supervisord_reads_back_what_was_meant_even_with_a_percent_sign(tmp_path: Path) -> None:
    home = tmp_path / "a b%c"
    (home / "config").mkdir(parents=True)
    (home / "config" / "shoal.toml").write_text("[runner]\nblas_threads = 6\n")
    settings = load_settings(home=home, flags={"slots": 3, "log_level": "debug"})
    make_folders(settings.paths)
    blas = {"LD_PRELOAD": "/lib/o.so", "OPENBLAS_NUM_THREADS": "6"}
    text = render(settings, python="/opt/my python/bin/python", blas=blas)
    found = read_back(tmp_path, text)
    assert set(found) == {f"{n}:{n}" for n in SERVICES} | {f"runner:0{n}" for n in range(3)}
    bus, slot = found["bus:bus"], found["runner:02"]
    assert bus.command == "'/opt/my python/bin/python' -P -m bus"  # type: ignore[attr-defined]
    assert bus.environment["SHOAL_HOME"] == str(home)  # type: ignore[attr-defined]
    assert bus.environment["SHOAL_LOG_LEVEL"] == "debug"  # type: ignore[attr-defined]
    assert "LD_PRELOAD" not in bus.environment  # type: ignore[attr-defined]
    assert bus.stdout_logfile == str(home / "state/logs/bus.log")  # type: ignore[attr-defined]
    assert slot.environment["LD_PRELOAD"] == "/lib/o.so"  # type: ignore[attr-defined]
    assert slot.environment["OPENBLAS_NUM_THREADS"] == "6"  # type: ignore[attr-defined]
    assert slot.environment["SHOAL_SLOT"] == "02"  # type: ignore[attr-defined]
    assert slot.stdout_logfile.endswith("logs/runner-02.log")  # type: ignore[attr-defined]
    assert (slot.autostart, slot.startsecs) == (False, 0)  # type: ignore[attr-defined]
    for process in found.values():
        assert process.stopasgroup and process.killasgroup  # type: ignore[attr-defined]
        assert process.redirect_stderr  # type: ignore[attr-defined]
        assert process.stdout_logfile_maxbytes * 3 == 30 << 20  # type: ignore[attr-defined]


def test_the_bus_starts_first_and_the_master_and_then_the_gateway_stop_first(
    tmp_path: Path,
) -> None:
    settings = load_settings(home=tmp_path)
    make_folders(settings.paths)
    found = read_back(tmp_path, render(settings, python="python", blas={}))
    order = {name: process.priority for name, process in found.items()}  # type: ignore[attr-defined]
    assert min(order, key=lambda name: order[name]) == "bus:bus"
    assert sorted(order, key=lambda name: -order[name])[:2] == ["master:master", "gateway:gateway"]


@pytest.mark.parametrize("name", ['a"b', "a'b", "a ;b", "a #b", "a\nb"])
def test_a_home_that_supervisord_cannot_express_is_refused(tmp_path: Path, name: str) -> None:
    settings = load_settings(home=tmp_path / name)
    with pytest.raises(ConfigError, match="another folder"):
        render(settings, python="python", blas={})


def test_socket_paths_are_short_and_private_whatever_the_home(tmp_path: Path) -> None:
    paths = find_paths(tmp_path / ("deep" * 40))
    settings = load_settings(home=tmp_path / "x")
    make_folders(settings.paths)
    assert len(str(paths.runtime)) < 60
    assert settings.paths.runtime.stat().st_mode & 0o777 == 0o700
    assert settings.paths.runtime != paths.runtime
    assert settings.endpoints.runner("07").startswith("ipc://")


def test_a_runtime_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    paths = find_paths(tmp_path)
    make_folders(paths)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(ConfigError, match="another user owns"):
        make_folders(paths)


def test_ports_lie_below_the_ephemeral_range_and_do_not_overlap() -> None:
    taken: set[int] = set()
    for port in PORTS.values():
        mine = set(range(port.offset, port.offset + port.count))
        assert not mine & taken
        assert max(mine) < SPAN
        taken |= mine
    assert port_of("ring", HIGHEST_BASE_PORT) + PORTS["ring"].count <= 32768
    assert port_of("http", None) == 52415
    assert port_of("http", 30000) == 30000
