"""When a certificate is valid, as openssl wrote it, and what is said of it."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from bus.links.certificates import (
    SOON_S,
    NoCertificate,
    Validity,
    first_certificate,
    standing,
    validity_of,
)
from tests.harness.certificates import DAY_S, TlsPairOnDisk, openssl

VALID = Validity(begins_s=1_000_000.0, ends_s=9_000_000.0)


@pytest.mark.parametrize("days", [-50, 7, 30_000])
def test_the_dates_of_a_certificate_are_those_that_were_written(tmp_path: Path, days: int) -> None:
    began = time.time()
    pair = TlsPairOnDisk(tmp_path, days=days)  # from 2050 on dates have another form
    found = validity_of(pair.certificate.read_text())
    assert abs(found.begins_s - (began - 100 * DAY_S)) < 60
    assert abs(found.ends_s - (began + days * DAY_S)) < 60


def test_of_a_chain_the_first_counts_whatever_stands_before_it(tmp_path: Path) -> None:
    one, other = TlsPairOnDisk(tmp_path / "1", days=5), TlsPairOnDisk(tmp_path / "2", days=50)
    text = f"issued to us\n{one.certificate.read_text()}{other.certificate.read_text()}"
    assert first_certificate(text) == one.certificate.read_text()
    assert validity_of(text) == validity_of(one.certificate.read_text())


def test_an_rsa_certificate_with_its_long_lengths_is_read(tmp_path: Path) -> None:
    to = tmp_path / "rsa.pem"
    openssl("req", "-x509", "-newkey", "rsa:4096", "-nodes", "-keyout", str(tmp_path / "key"),
            "-subj", f"/O={'long ' * 12}/CN=x", "-days", "20", "-out", str(to))  # fmt: skip
    assert abs(validity_of(to.read_text()).ends_s - time.time() - 20 * DAY_S) < 60


def test_what_is_damaged_is_no_certificate_and_nothing_worse(tmp_path: Path) -> None:
    text = TlsPairOnDisk(tmp_path).certificate.read_text()
    chance = random.Random(7)
    refused = 0
    for _ in range(2000):
        letters = list(text)
        for _ in range(chance.randint(1, 4)):
            letters[chance.randrange(len(letters))] = chr(chance.randint(32, 126))
        try:
            validity_of("".join(letters))
        except NoCertificate:
            refused += 1
    assert refused > 100
    for end in range(0, len(text), 7):
        with pytest.raises(NoCertificate):
            validity_of(text[:end])


@pytest.mark.parametrize(
    ("now_s", "said"),
    [
        (999_999.0, "is not valid before 1970-01-12 13:46 UTC: clients refuse it until then"),
        (1_000_000.0, ""),
        (9_000_000.0 - SOON_S, ""),
        (9_000_001.0 - SOON_S, "expires on 1970-04-15 04:00 UTC"),
        (8_999_999.0, "expires on 1970-04-15 04:00 UTC"),
        (9_000_000.0, "expired on 1970-04-15 04:00 UTC: clients refuse it"),
    ],
)
def test_a_certificate_is_spoken_of_before_its_time_and_14_days_before_its_end(
    now_s: float, said: str
) -> None:
    assert standing(VALID, now_s) == said
