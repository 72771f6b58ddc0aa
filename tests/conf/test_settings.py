from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from bus.links.tls_files import TlsFiles
from bus.wire.errors import ConfigError
from conf.changing.file import change
from conf.keys import environment_of, line_of
from conf.paths import find_paths
from conf.sections import masked
from conf.settings import (
    DEFAULTS_FILE,
    RunnerSettings,
    Settings,
    hash_key,
    load_settings,
)
from conf.supervisord import remember_start


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import os

    for name in [name for name in os.environ if name.startswith("SHOAL_")]:
        monkeypatch.delenv(name)
    (tmp_path / "config").mkdir()
    (tmp_path / "state").mkdir()
    return tmp_path


def write(home: Path, text: str) -> None:
    (home / "config" / "shoal.toml").write_text(text)


def test_the_defaults_file_names_every_setting_and_no_other() -> None:
    defaults = tomllib.loads(DEFAULTS_FILE.read_text())
    assert set(defaults) == set(Settings.model_fields)
    assert set(defaults["runner"]) == set(RunnerSettings.model_fields)


def test_layers_win_in_rising_order_and_each_value_names_its_source(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, 'keep_alive_s = 10\nslots = 3\nlog_level = "debug"\n[runner]\nmax_rows = 7\n')
    monkeypatch.setenv("SHOAL_SLOTS", "4")
    monkeypatch.setenv("SHOAL_RUNNER__MAX_WAITING", "2")
    settings = load_settings(home=home, flags={"log_level": "error", "slots": None})
    assert (settings.keep_alive_s, settings.slots, settings.log_level) == (10.0, 4, "error")
    assert (settings.runner.max_rows, settings.runner.max_waiting) == (7, 2)
    assert settings.sources["keep_alive_s"] == f"file {home / 'config' / 'shoal.toml'}"
    assert settings.sources["slots"] == "environment SHOAL_SLOTS"
    assert settings.sources["log_level"] == "flag"
    assert settings.sources["runner.max_rows"].startswith("file ")
    assert settings.sources["runner.prefill_share"] == "default"
    keys = [key for key, _, _ in settings.rows()]
    assert "runner.max_rows" in keys and "runner" not in keys


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slot = 3\n", "slot is not a setting; did you mean slots?"),
        (
            "[runner]\nmax_row = 3\n",
            "runner.max_row is not a setting; did you mean runner.max_rows?",
        ),
        ("max_rows = 3\n", "max_rows is not a setting; did you mean runner.max_rows?"),
        ("slots = 0\n", "slots = 0: must be at least 1"),
        ('log_level = "loud"\n', "log_level = 'loud'"),
        ('voters = ["a", "b"]\n', "must have 3 or more different node ids, or none"),
        ('voters = ["a", "b", "b"]\n', "must have 3 or more different node ids, or none"),
        ("settle_grace_s = 5.0\n", "settle_grace_s = 5.0"),
        ("slots = \n", "shoal.toml"),
        ('http_tls_cert = "cert.pem"\n', "must be an absolute path, beginning with / or ~/"),
        ("weights_bytes_per_s = 7\n", "0 (no limit) or at least 1000000"),
    ],
)
def test_a_wrong_line_is_refused_with_what_was_meant(home: Path, text: str, said: str) -> None:
    write(home, text)
    with pytest.raises(ConfigError) as refused:
        load_settings(home=home)
    assert said in str(refused.value)
    assert "shoal.toml" in str(refused.value)


@pytest.mark.parametrize("name", ["cert", "key"])
def test_a_certificate_without_its_key_is_refused_and_a_key_without_its_certificate(
    home: Path, name: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings(home=home, flags={f"http_tls_{name}": "/some/file.pem"})
    assert "set both http_tls_cert and http_tls_key" in str(refused.value)
    assert f"only http_tls_{name} is set" in str(refused.value)


def test_with_a_certificate_and_its_key_the_address_is_https(home: Path) -> None:
    assert load_settings(home=home).tls is None
    flags = {"http_tls_cert": "~/cert.pem", "http_tls_key": "/etc/key.pem"}
    settings = load_settings(home=home, flags=flags)
    assert settings.url == "https://127.0.0.1:52415"
    assert settings.tls == TlsFiles(str(Path.home() / "cert.pem"), "/etc/key.pem")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("SHOAL_HTTPPORT", "SHOAL_HTTP_PORT"),
        ("SHOAL_RUNNER_MAX_ROWS", "SHOAL_RUNNER__MAX_ROWS"),
        ("SHOAL_SPECULATE", "SHOAL_RUNNER__SPECULATE"),
    ],
)
def test_an_unknown_variable_is_refused_with_what_was_meant(
    home: Path, monkeypatch: pytest.MonkeyPatch, written: str, meant: str
) -> None:
    monkeypatch.setenv(written, "1")
    with pytest.raises(ConfigError, match=f"did you mean {meant}\\?"):
        load_settings(home=home)


def test_a_base_port_moves_http_too_unless_http_has_its_own(home: Path) -> None:
    assert load_settings(home=home).http_port == 52415
    moved = load_settings(home=home, flags={"base_port": 30000})
    assert (moved.http_port, moved.port_of("control")) == (30000, 30001)
    both = load_settings(home=home, flags={"base_port": 30000, "http_port": 8080})
    assert (both.http_port, both.port_of("control")) == (8080, 30001)
    with pytest.raises(ConfigError, match="base_port") as refused:
        load_settings(home=home, flags={"base_port": 35000})
    said = str(refused.value)
    assert "outgoing connections" in said, "why"
    assert "from 1024 to 32668, such as 25000" in said, "what to type"
    assert load_settings(home=home, flags={"base_port": 32668}).http_port == 32668


def test_what_shoal_up_was_told_holds_for_later_commands_but_not_for_the_next_up(
    home: Path,
) -> None:
    remember_start(load_settings(home=home, flags={"base_port": 30000}, remembered=False))
    assert load_settings(home=home).http_port == 30000
    assert load_settings(home=home, remembered=False).http_port == 52415


@pytest.mark.parametrize("typo", ["slots = many", "slotz = 3", "slots = 300"])
def test_a_node_that_is_up_goes_on_with_the_file_of_its_start(home: Path, typo: str) -> None:
    file = home / "config" / "shoal.toml"
    file.write_text("slots = 4\n")
    remember_start(load_settings(home=home, flags={"base_port": 30000}, remembered=False))
    assert load_settings(home=home).trouble == ""
    file.write_text(f"# ours\n{typo}\n")
    found = load_settings(home=home)
    assert (found.slots, found.http_port) == (4, 30000)
    assert str(file) in found.trouble and "line 2" in found.trouble
    assert found.process_arguments()["trouble"] == found.trouble
    with pytest.raises(ConfigError, match="line 2"):
        load_settings(home=home, remembered=False)
    found.paths.up_file.unlink()
    with pytest.raises(ConfigError, match="line 2"):
        load_settings(home=home)


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("slots = 4", "slots", 1),
        ("# slots = 4\n\n slots=4", "slots", 3),
        ("slots = 4\n[runner] # theirs\nslots = 5", "runner.slots", 3),
        ("runner.slots = 5", "runner.slots", 1),
        ("[runner]\nslots = 5\n[runer]", "runer", 3),
        ("slots = 4\n[runner]", "runner.slots", None),
        ("runner = { slots = 5 }", "runner.slots", None),
    ],
)
def test_the_line_that_sets_a_key_is_found(text: str, key: str, line: int | None) -> None:
    assert line_of(text, key) == line


def test_flags_reach_children_as_variables(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {"preload": ["a", "b"], "runner.max_rows": 3, "base_port": 30000}
    given = load_settings(home=home, flags=flags)
    for name, value in environment_of(given.flags).items():
        monkeypatch.setenv(name, value)
    child = load_settings(home=home)
    assert child.model_dump() == given.model_dump()


def test_keys_are_kept_as_hashes_only(home: Path) -> None:
    settings = load_settings(home=home, flags={"http_host": "0.0.0.0", "api_keys": ["secret"]})
    assert settings.api_keys == (hash_key("secret"),)
    assert settings.url == "http://127.0.0.1:52415"


def test_a_limit_on_giving_weights_is_none_or_one_that_pieces_can_keep(home: Path) -> None:
    for good in (0, 1_000_000):
        flags = {"weights_bytes_per_s": good}
        assert load_settings(home=home, flags=flags).weights_bytes_per_s == good
    with pytest.raises(ConfigError, match="at least 1000000"):
        load_settings(home=home, flags={"weights_bytes_per_s": 5})


def test_preload_names_real_models(home: Path) -> None:
    assert load_settings(home=home).preload == ("shoal-tiny",)
    assert load_settings(home=home, flags={"preload": []}).preload == ()
    settings = load_settings(home=home, flags={"preload": "x/y,default", "default_model": "z"})
    assert settings.preload == ("x/y", "z")


@pytest.mark.parametrize(
    ("said", "listen", "has_key", "discovers"),
    [
        ("", "127.0.0.1", True, False),
        ("", "0.0.0.0", True, True),
        ("", "0.0.0.0", False, False),
        ("", "", True, False),
        ("discovery = true", "127.0.0.1", False, True),
        ("discovery = false", "0.0.0.0", True, False),
    ],
)
def test_mdns_is_used_where_others_can_reach_a_node_with_a_key_or_as_it_is_said(
    home: Path, said: str, listen: str, has_key: bool, discovers: bool
) -> None:
    write(home, f'[cluster]\nlisten = "{listen}"\n{said}\n')
    assert load_settings(home=home).cluster.discovers(has_key=has_key) is discovers


def test_links_are_measured_unless_that_is_turned_off(home: Path) -> None:
    assert load_settings(home=home).cluster.measure_links
    write(home, "[cluster]\nmeasure_links = false\n")
    assert not load_settings(home=home).cluster.measure_links


def test_discovery_is_told_by_the_environment_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CLUSTER__DISCOVERY", "true")
    assert load_settings(home=home).cluster.discovery is True
    monkeypatch.setenv("SHOAL_CLUSTER__DISCOVERY", "sometimes")
    with pytest.raises(ConfigError, match=r"cluster\.discovery"):
        load_settings(home=home)


def test_a_list_in_a_variable_has_commas_or_is_a_json_array(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("/a, /b", '["/a", "/b"]'):
        monkeypatch.setenv("SHOAL_MODEL_FOLDERS", text)
        assert load_settings(home=home).model_folders == ("/a", "/b")
    for text in ('["/a"', '["/a", 3]'):
        monkeypatch.setenv("SHOAL_MODEL_FOLDERS", text)
        with pytest.raises(ConfigError, match="model_folders"):
            load_settings(home=home)


def test_what_multiplies_is_measured_unless_it_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_settings(home=home).runner
    assert (runner.blas, runner.blas_threads, runner.parity) == ("auto", "auto", "exact")
    write(home, "[runner]\nblas_threads = 2\n")
    assert load_settings(home=home).runner.blas_threads == 2
    monkeypatch.setenv("SHOAL_RUNNER__BLAS_THREADS", "4")
    assert load_settings(home=home).runner.blas_threads == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("blas_threads", 0),
        ("blas_threads", 257),
        ("blas_threads", "many"),
        ("blas_threads", True),
        ("blas", "openblas"),
        ("blas", "/lib/a b.so"),
        ("blas", "/lib/a:b.so"),
        ("parity", "quick"),
    ],
)
def test_how_a_runner_multiplies_is_refused_by_name(home: Path, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"runner\.{name} = "):
        load_settings(home=home, flags={f"runner.{name}": value})


def test_headers_for_a_collector_are_read_and_never_shown(tmp_path: Path) -> None:
    given = "x-key=geheim-7f3, authorization=Bearer%20a%2Cb"
    settings = load_settings(home=tmp_path, flags={"otlp.headers": given})
    assert settings.otlp.named_headers == {"x-key": "geheim-7f3", "authorization": "Bearer a,b"}
    assert masked("otlp.headers", settings.otlp.headers) == "(set)"
    assert "geheim" not in repr(settings.otlp)
    with pytest.raises(ConfigError, match=r"entry 2 is not name=value") as refused:
        load_settings(home=tmp_path, flags={"otlp.headers": "a=b,geheim-7f3"})
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:4318",
        "ftp://h",
        "http://",
        "http://h:99999",
        "http://u:geheim@h",
        "http://h?k=geheim",
    ],
)
def test_what_is_no_address_of_a_collector_is_refused(tmp_path: Path, endpoint: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT") as refused:
        load_settings(home=tmp_path, flags={"otlp.endpoint": endpoint})
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("name", ["ingest_url", "ingest_token_env"])
def test_a_file_that_still_names_the_log_shipper_is_told_what_to_do_instead(
    home: Path, name: str
) -> None:
    write(home, f'slots = 3\n[log]\n{name} = "x"\n')
    with pytest.raises(ConfigError) as refused:
        load_settings(home=home)
    text = str(refused.value)
    assert "shoal.toml, line 2: log was removed: " in text
    assert "delete this table" in text and "docs/operations/diagnostics.md" in text


def test_a_removed_setting_is_refused_in_the_environment_and_when_it_is_set(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"log\.ingest_url was removed: "):
        change(find_paths(home), {"log.ingest_url": "http://h"}, [])
    monkeypatch.setenv("SHOAL_LOG__INGEST_URL", "http://h")
    with pytest.raises(ConfigError, match="environment: SHOAL_LOG__INGEST_URL was removed: "):
        load_settings(home=home)


def test_the_empty_table_of_an_earlier_versions_file_is_taken(home: Path) -> None:
    write(home, '[log]\n#ingest_url = ""\n')
    assert load_settings(home=home).slots
