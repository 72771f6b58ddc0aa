"""What is wrong with the files of HTTPS, in words, and what becomes of a pair that is replaced."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bus.links.certificates import standing
from bus.links.tls_files import (
    SERVED_KEPT,
    SETTINGS,
    HttpsServed,
    PairWatch,
    TlsFiles,
    exposed_key,
    forget_served,
    read_pair,
    read_served,
    tell_served,
)
from bus.process.clock import wall
from bus.wire.errors import ConfigError
from tests.harness.certificates import TlsPairOnDisk, openssl, put


def of(pair: TlsPairOnDisk) -> TlsFiles:
    return TlsFiles(str(pair.certificate), str(pair.key))


def refusal(certificate: Path, key: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        read_pair(TlsFiles(str(certificate), str(key)))
    assert str(refused.value).startswith(f"{SETTINGS}: ")
    return str(refused.value).removeprefix(f"{SETTINGS}: ")


def test_a_pair_that_is_no_good_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    one, other = TlsPairOnDisk(tmp_path / "1"), TlsPairOnDisk(tmp_path / "2")
    good, key = one.certificate, one.key
    missing = tmp_path / "missing.pem"
    assert refusal(missing, key).startswith(f"the certificate {missing} does not exist; set both ")
    assert refusal(good, missing).startswith(f"the key {missing} does not exist; set both ")
    assert "cannot be read (Is a directory)" in refusal(tmp_path, key)
    assert f"{other.key} does not belong to the certificate {good}" in refusal(good, other.key)
    assert "are the two settings swapped?" in refusal(key, good)
    assert "contains no PEM private key" in refusal(good, good)
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    assert "holds no PEM certificate" in refusal(empty, key)
    cut = tmp_path / "cut.pem"
    cut.write_text(good.read_text()[:200] + "\n-----END CERTIFICATE-----\n")
    assert "holds no readable certificate" in refusal(cut, key)
    cut.write_text(key.read_text()[:60] + "\n-----END PRIVATE KEY-----\n")
    assert "cannot be used" in refusal(good, cut)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_key_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    pair = TlsPairOnDisk(tmp_path)
    pair.key.chmod(0)
    assert "cannot be read (Permission denied)" in refusal(pair.certificate, pair.key)


@pytest.mark.parametrize("form", ["pkey", "ec"])
def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(tmp_path: Path, form: str) -> None:
    pair, locked = TlsPairOnDisk(tmp_path), tmp_path / "locked.key"
    openssl(form, "-in", str(pair.key), "-aes256", "-passout", "pass:secret", "-out", str(locked))
    said = refusal(pair.certificate, locked)
    assert f"{locked} has a passphrase" in said
    assert f"`openssl pkey -in {locked} -out NEW.pem`" in said


def test_a_key_that_others_may_read_is_spoken_of(tmp_path: Path) -> None:
    pair = TlsPairOnDisk(tmp_path)
    assert exposed_key(of(pair)) is None
    for mode in (0o640, 0o604):
        pair.key.chmod(mode)
        assert str(pair.key) in (exposed_key(of(pair)) or "")


def test_another_good_pair_is_taken_and_its_context_is_another(tmp_path: Path) -> None:
    first, second = TlsPairOnDisk(tmp_path), TlsPairOnDisk(tmp_path / "other")
    watch = PairWatch(of(first))
    before = watch.pair
    assert not watch.look()
    first.become(second)
    assert watch.look()
    assert watch.pair.certificate == second.certificate.read_text()
    assert watch.pair.context is not before.context
    assert not watch.look()


def test_a_pair_that_is_half_replaced_at_one_look_raises_no_alarm(tmp_path: Path) -> None:
    first, second = TlsPairOnDisk(tmp_path), TlsPairOnDisk(tmp_path / "other")
    watch = PairWatch(of(first))
    put(first.certificate, second.certificate.read_text())
    assert not watch.look() and watch.trouble == ""
    put(first.key, second.key.read_text())
    assert watch.look() and watch.trouble == ""


def test_what_is_wrong_for_two_looks_is_told_until_it_is_mended(tmp_path: Path) -> None:
    pair = TlsPairOnDisk(tmp_path)
    watch, text = PairWatch(of(pair)), pair.certificate.read_text()
    pair.certificate.unlink()
    before = watch.pair
    assert not watch.look() and watch.trouble == ""
    assert not watch.look() and "does not exist" in watch.trouble
    assert watch.pair is before
    put(pair.certificate, "rubbish")
    assert not watch.look() and "does not exist" in watch.trouble
    assert not watch.look() and "holds no PEM certificate" in watch.trouble
    put(pair.certificate, text)
    assert watch.look() and watch.trouble == ""


def test_what_serves_is_told_with_what_served_just_before(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert read_served(folder) == HttpsServed()
    pairs = [read_pair(of(TlsPairOnDisk(tmp_path / str(n)))) for n in range(SERVED_KEPT + 1)]
    for one in pairs:
        tell_served(folder, one, "")
    told = tuple(one.certificate for one in reversed(pairs))[:SERVED_KEPT]
    assert read_served(folder) == HttpsServed(told)
    tell_served(folder, None, "it is broken")
    assert read_served(folder) == HttpsServed(told, "it is broken")
    (tmp_path / "http-tls.json").write_text("[1, 2")
    assert read_served(folder) == HttpsServed()
    forget_served(folder)
    assert not (tmp_path / "http-tls.json").exists()


def test_the_lines_of_the_page_make_a_pair_that_serves(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/operations/security.md").read_text()
    lines = page.partition("## HTTPS")[2].split("```")[1].strip().removesuffix("shoal up")
    told = f'{lines}\necho "$SHOAL_HTTP_TLS_CERT" "$SHOAL_HTTP_TLS_KEY"'
    done = subprocess.run(
        ["bash", "-ec", told], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    files = TlsFiles(*done.stdout.split())
    assert standing(read_pair(files).valid, wall()) == ""
    assert exposed_key(files) is None
