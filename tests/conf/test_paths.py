from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bus.process.endpoints import Endpoints, Means
from conf.paths import (
    MAX_ROOT_BYTES,
    OWNER_S,
    REOPEN_LOGS_S,
    REPORTED_S,
    MeansKeeper,
    Paths,
    make_folders,
    means_of,
    runtime_root,
)

TMP = Path("/private/tmp")


@pytest.mark.parametrize("name", ["ann", "a" * 40])
def test_a_macs_runtime_folders_lie_where_nothing_is_swept_and_sockets_stay_short(
    name: str,
) -> None:
    cache = Path(f"/Users/{name}/Library/Caches/shoal")
    root = runtime_root("darwin", TMP, cache, 501)
    assert root == (cache if len(str(cache)) <= MAX_ROOT_BYTES else TMP / "shoal-501")
    assert root == cache or len(name) == 40
    endpoints = Endpoints(str(root / "0123456789"))
    assert endpoints.stacks("runner:99") and endpoints.gateway(63) and endpoints.supervisor


def test_elsewhere_they_lie_in_the_temporary_folder() -> None:
    assert runtime_root("linux", Path("/tmp"), Path("/home/ann/.cache/shoal"), 7) == Path(
        "/tmp/shoal-7"
    )


def means(folder: Path) -> tuple[Paths, Endpoints, tuple[Means, ...]]:
    """A home of which everything is there that its processes need."""
    paths = Paths(*[folder], True, *[folder / n for n in ("c", "d", "s")], folder / "r" / "h")
    endpoints = Endpoints(str(paths.runtime))
    make_folders(paths)
    found = means_of(paths, endpoints, ("bus", "gateway"))
    for one in found:
        one.path.parent.mkdir(exist_ok=True)
        if one.owner:
            one.path.touch()
    return paths, endpoints, found


def test_folders_that_were_removed_are_made_anew_and_it_is_told_for_a_while(
    tmp_path: Path,
) -> None:
    paths, _, all_means = means(tmp_path)
    opened: list[int] = []
    keeper = MeansKeeper(paths, all_means, lambda: opened.append(1))
    assert keeper.look((), 0.0) == ()
    for one in (paths.logs, paths.models, paths.run, paths.runtime):
        shutil.rmtree(one)
    told = [(one.means.path, one.is_back) for one in keeper.look((), 1.0)]
    assert told == [(paths.logs, True), (paths.models, True)], "those with content that is lost"
    assert all(one.is_dir() for one in (paths.logs, paths.models, paths.run, paths.runtime))
    assert opened == [1] and paths.runtime.stat().st_mode & 0o777 == 0o700
    assert keeper.look((), 2.0) and opened == [1], "supervisord has time to open its logs"
    keeper.look((), 1.0 + REOPEN_LOGS_S)
    assert opened == [1, 1], "it is asked again until they are there"
    for one in all_means:
        one.path.parent.mkdir(exist_ok=True)
        if one.owner:
            one.path.touch()
    assert len(keeper.look((), 10.0)) == 2
    assert keeper.look((), 11.0 + REPORTED_S) == () and opened == [1, 1]


def test_a_folder_that_cannot_be_made_is_told_with_the_reason(tmp_path: Path) -> None:
    paths, _, all_means = means(tmp_path)
    keeper = MeansKeeper(paths, all_means, lambda: None)
    keeper.look((), 0.0)
    for one in (paths.data, paths.logs):
        shutil.rmtree(one)
    paths.data.write_text("in the way")
    models, logs = keeper.look((), 1.0)
    assert (models.means.path, models.is_back) == (paths.models, False)
    assert str(paths.data) in models.trouble
    assert logs.is_back and logs.means.path == paths.logs, "the others are made all the same"
    paths.data.unlink()
    assert all(one.is_back for one in keeper.look((), 2.0))


def test_a_file_is_missed_when_its_owner_runs_and_has_not_made_it_anew(tmp_path: Path) -> None:
    paths, endpoints, all_means = means(tmp_path)
    keeper = MeansKeeper(paths, all_means, lambda: None)
    keeper.look((), 0.0)
    sockets = [Path(one) for one in endpoints.services()["bus"]]
    for one in (*sockets, paths.records):
        one.unlink()
    assert keeper.look(("bus",), 1.0) == (), "its owner has a moment"
    assert keeper.look((), 1.0 + OWNER_S) == (), "an owner that does not run is no news here"
    assert keeper.look(("bus",), 2.0 + OWNER_S) == ()
    missed = keeper.look(("bus",), 2.0 + 2 * OWNER_S)
    assert [one.means.path for one in missed] == sockets
    for one in sockets:
        one.touch()
    assert keeper.look(("bus",), 30.0) == ()
    keeper.look(("gateway",), 31.0)
    paths.records.touch()
    (back,) = keeper.look(("gateway",), 32.0)
    assert back.is_back and back.means.path == paths.records
