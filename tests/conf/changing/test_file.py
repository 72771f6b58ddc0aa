"""`shoal.toml` on the disk: whole or untouched, with its rights, by one at a time."""

from __future__ import annotations

import stat
import threading
import tomllib
from pathlib import Path

import pytest

from bus.wire.errors import ConfigError, SettingsUnwritable
from conf.changing import (
    SettingsTold,
    change,
    differing,
    readable_key,
    replace,
    text_of,
    write_first,
)
from conf.changing.file import defaults
from conf.changing.told import HERE_ALONE, HOT
from conf.paths import Paths, find_paths
from conf.settings import Settings, hash_key, load_settings
from conf.supervisord import remember_start
from tests.harness.small_disks import filled, needs_mounts, small_disk


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    import os

    for name in [name for name in os.environ if name.startswith("SHOAL_")]:
        monkeypatch.delenv(name)
    return find_paths(tmp_path)


def values(paths: Paths) -> dict[str, object]:
    return tomllib.loads(paths.config_file.read_text())


def test_the_first_file_is_the_owners_alone_and_is_written_once(paths: Paths) -> None:
    assert write_first(paths) and not write_first(paths)
    assert stat.S_IMODE(paths.config_file.stat().st_mode) == 0o600
    change(paths, {"slots": "3"}, ())
    assert not write_first(paths) and load_settings(home=paths.home).slots == 3


def test_a_folder_that_cannot_be_written_keeps_no_node_from_starting(paths: Paths) -> None:
    paths.home.mkdir(exist_ok=True)
    paths.config.write_text("a file where the folder would be")
    assert not write_first(paths)
    with pytest.raises(ConfigError):
        change(paths, {"slots": 3}, ())


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("slots", "0", "slots = 0: must be at least 1"),
        ("log_level", "loud", "log_level = 'loud'"),
        ("runner.max_row", "3", "did you mean runner.max_rows?"),
        ("http_tls_cert", "/a.pem", "set both http_tls_cert"),
    ],
)
def test_what_a_node_would_not_take_is_not_written(
    paths: Paths, key: str, value: str, said: str
) -> None:
    write_first(paths)
    before = paths.config_file.read_bytes()
    with pytest.raises(ConfigError) as refused:
        change(paths, {key: value}, ())
    assert said in str(refused.value) and str(paths.home) not in str(refused.value)
    assert paths.config_file.read_bytes() == before
    assert [one.name for one in paths.config.iterdir()] == ["shoal.toml"]


def test_several_settings_change_together(paths: Paths) -> None:
    change(paths, {"http_tls_cert": "/a.pem", "http_tls_key": "/a.key"}, ())
    change(paths, {"slots": 2}, ("http_tls_cert", "http_tls_key"))
    assert values(paths)["slots"] == 2 and "http_tls_cert" not in values(paths)


def test_a_key_is_written_as_its_hash(paths: Paths) -> None:
    change(paths, {"api_keys": ["sk-secret"]}, ())
    assert "sk-secret" not in paths.config_file.read_text()
    assert load_settings(home=paths.home).api_keys == (hash_key("sk-secret"),)


def test_a_link_stays_a_link_and_rights_stay(paths: Paths, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles.toml"
    kept.write_text("slots = 3\n")
    kept.chmod(0o640)
    paths.config.mkdir(parents=True)
    paths.config_file.symlink_to(kept)
    change(paths, {"slots": 4}, ())
    assert paths.config_file.is_symlink() and kept.read_text() == "slots = 4\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640


def test_changes_at_once_are_all_there(paths: Paths) -> None:
    put = {"slots": 2, "keep_alive_s": 1, "runner.max_rows": 3, "jobs.rows": 4, "offline": True}
    began = threading.Barrier(len(put))

    def set_one(key: str, value: object) -> None:
        """Change one of them."""
        began.wait(20)
        change(paths, {key: value}, ())

    threads = [threading.Thread(target=set_one, args=one) for one in put.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert values(paths) | {} == {
        "slots": 2,
        "keep_alive_s": 1.0,
        "offline": True,
        "runner": {"max_rows": 3},
        "jobs": {"rows": 4},
        "cluster": {},
        "records": {},
        "fetch": {},
        "tools": {},
        "pool": {},
        "keep_alive": {},
        "otlp": {},
    }


def test_a_text_that_another_has_changed_is_not_overwritten(paths: Paths) -> None:
    write_first(paths)
    before = text_of(paths) or ""
    change(paths, {"slots": 2}, ())
    with pytest.raises(ConfigError) as refused:
        replace(paths, "slots = 3\n", before)
    assert "in the meantime" in str(refused.value) and values(paths)["slots"] == 2
    replace(paths, "slots = 3\n", text_of(paths) or "")
    assert paths.config_file.read_text() == "slots = 3\n"


def test_what_a_running_node_was_started_with_is_told(paths: Paths) -> None:
    change(paths, {"slots": 3}, ())
    running = load_settings(home=paths.home)
    assert differing(paths, running) == {}
    paths.state.mkdir(parents=True)
    remember_start(running)
    change(paths, {"slots": 4, "log_level": "debug"}, ())
    assert differing(paths, load_settings(home=paths.home)) == {"slots": 3, "log_level": "info"}


def test_what_is_told_over_http_has_no_secret_and_says_what_waits(paths: Paths) -> None:
    secret = "http://me:pass@engine/?key=secret"
    change(paths, {"tools.search": "searxng", "tools.search_url": secret, "slots": 3}, ())
    desk = SettingsTold(load_settings(home=paths.home))
    desk.change({"slots": 4, "log_level": "debug"}, ())
    change(paths, {"api_keys": "sk-secret"}, ())
    told = desk.rows()
    assert "pass@" not in str(told) and "secret" not in str(told)
    assert hash_key("sk-secret") not in str(told)
    rows = {row["key"]: row for row in told["settings"]}
    assert set(rows) == set(defaults())
    assert (rows["slots"]["value"], rows["slots"]["running"]) == (4, 3)
    assert {key for key, row in rows.items() if row["differs"]} == {"slots", "api_keys"}
    assert rows["log_level"]["takes"] == "at once" and rows["log_level"]["running"] == "debug"
    assert rows["runner.parity"]["choices"] == ["exact", "fast"]
    assert (rows["voters"]["kind"], rows["offline"]["kind"]) == ("words", "truth")


def test_settings_that_reach_beyond_the_api_are_changed_on_the_machine_alone() -> None:
    assert set(HERE_ALONE) | HOT <= set(defaults())
    named = {key for key in defaults() if key.endswith(("_file", "_folders", "_url", "_keys"))}
    assert named <= set(HERE_ALONE)
    assert {"runner.blas", "http_host", "cluster.listen", "fetch.allow", "offline"} <= set(
        HERE_ALONE
    )
    assert set(Settings.model_fields) > HOT


def test_a_key_that_others_may_read_is_told(paths: Paths) -> None:
    paths.config.mkdir(parents=True)
    paths.config_file.write_text('api_keys = ["sk-secret"]\n')
    paths.config_file.chmod(0o644)
    assert "other users can read" in (readable_key(paths.config_file) or "")
    paths.config_file.chmod(0o600)
    assert readable_key(paths.config_file) is None


@needs_mounts
def test_a_full_disk_is_told_from_a_setting_that_is_wrong(paths: Paths) -> None:
    paths.config.mkdir(parents=True)
    with small_disk(paths.config):
        change(paths, {"keep_alive_s": 60}, [])
        filled(paths.config)
        with pytest.raises(SettingsUnwritable, match=r"No space left.*make room") as full:
            change(paths, {"keep_alive_s": 61}, [])
        assert full.value.is_full and values(paths)["keep_alive_s"] == 60
        with pytest.raises(ConfigError) as wrong:
            change(paths, {"keep_alive_s": "x"}, [])
        assert not isinstance(wrong.value, SettingsUnwritable)
