"""The validity of certificates.

Pure. Only the fields before the subject are read (RFC 5280, 4.1), by their lengths. The signature
is not verified.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime

SOON_S = 14 * 86_400.0
"""A warning about a certificate begins this many seconds before the certificate expires."""
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----\s+([A-Za-z0-9+/=\s]+?)-----END CERTIFICATE-----")
_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
_CONTEXT_0 = 0xA0


class NoCertificate(ValueError):
    """A text contains no readable certificate."""


@dataclass(frozen=True, slots=True)
class Validity:
    """The validity period of a certificate, in seconds of Unix time."""

    begins_s: float
    ends_s: float


def first_certificate(text: str) -> str:
    """Return the first certificate of a PEM text, as PEM. Raises NoCertificate."""
    match = _PEM.search(text)
    if match is None:
        raise NoCertificate("no PEM certificate")
    return match.group(0) + "\n"


def validity_of(pem: str) -> Validity:
    """Return the validity of the first certificate of a PEM text. Raises NoCertificate."""
    match = _PEM.search(pem)
    try:
        der = base64.b64decode("" if match is None else match.group(1))
        inside = _inside(der, 0)
        at = _inside(der, inside)
        if der[at] == _CONTEXT_0:  # the version; the oldest certificates have none
            at = _after(der, at)
        for _ in ("serial number", "signature's algorithm", "issuer"):
            at = _after(der, at)
        begins = _inside(der, at)
        return Validity(_instant(der, begins), _instant(der, _after(der, begins)))
    except (binascii.Error, IndexError, KeyError, ValueError, OverflowError) as error:
        raise NoCertificate(f"no readable certificate ({error})") from None


def standing(validity: Validity, now_s: float) -> str:
    """Return a warning, with the date, if a certificate is not valid at `now_s` or expires soon;
    else ""."""
    if now_s < validity.begins_s:
        return f"is not valid before {date_of(validity.begins_s)}: clients refuse it until then"
    if now_s >= validity.ends_s:
        return f"expired on {date_of(validity.ends_s)}: clients refuse it"
    if validity.ends_s - now_s < SOON_S:
        return f"expires on {date_of(validity.ends_s)}"
    return ""


def date_of(at_s: float) -> str:
    """Return a Unix time as text: date, hour and minute in UTC."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"


def _sized(der: bytes, at: int) -> tuple[int, int]:
    """Return where the content of the DER element at offset `at` begins, and its length."""
    length, start = der[at + 1], at + 2
    if length >= 0x80:
        count = length - 0x80
        length, start = int.from_bytes(der[start : start + count]), start + count
    if start + length > len(der):
        raise ValueError("the certificate is truncated")
    return start, length


def _inside(der: bytes, at: int) -> int:
    return _sized(der, at)[0]


def _after(der: bytes, at: int) -> int:
    start, length = _sized(der, at)
    return start + length


def _instant(der: bytes, at: int) -> float:
    start, length = _sized(der, at)
    text = der[start : start + length].decode("ascii", "replace")
    return datetime.strptime(text, _TIMES[der[at]]).replace(tzinfo=UTC).timestamp()
