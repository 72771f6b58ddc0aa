"""Talks to the disk: the certificate and key of HTTPS, read, checked, and watched while they serve.

A pair is whole or refused, in words that name both settings and the way out. What serves stays as
it is until another pair has been read and found good: a new one is a new context, which only new
connections use. A pair that is being replaced may be seen half: what is wrong with it is said when
it has been so for two looks.
"""

from __future__ import annotations

import json
import os
import ssl
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from bus.links.certificates import NoCertificate, Validity, first_certificate, validity_of
from bus.wire.errors import ConfigError

SETTINGS = "http_tls_cert and http_tls_key"
"""What the settings of the two files are called to people."""
LEAST_TLS = ssl.TLSVersion.TLSv1_2
FILE_BYTES = 1 << 20
SERVED_FILE = "http-tls.json"
"""In the runtime folder: what the gateway serves with, for this user's other processes."""
SERVED_KEPT = 3
_KEY = "PRIVATE KEY-----"
_WAY_OUT = "set both to the PEM files of a certificate and its key, or neither for plain HTTP"
_WRONG = {
    "KEY_VALUES_MISMATCH": "the key {key} does not belong to the certificate {certificate}",
    "EE_KEY_TOO_SMALL": "the key of {certificate} is too short for OpenSSL",
    "CA_MD_TOO_WEAK": "{certificate} is signed with a hash that is too weak for OpenSSL",
}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where a certificate (with its chain after it) and its key are, whole paths."""

    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class TlsPair:
    """A pair that was found good. `certificate` is its own certificate as PEM, without a chain."""

    context: ssl.SSLContext
    certificate: str
    valid: Validity


@dataclass(frozen=True, slots=True)
class HttpsServed:
    """What the gateway serves with: certificates as PEM, the newest first, since a moment ago
    another may have served. `trouble` is what is wrong with the files now, "" for nothing."""

    certificates: tuple[str, ...] = ()
    trouble: str = ""


class _PassphraseAskedError(Exception):
    """The key is locked."""


def read_pair(files: TlsFiles) -> TlsPair:
    """Return the pair, ready to serve. Raises ConfigError, which says what is wrong."""
    text = _read(files.certificate, "certificate")
    key = _read(files.key, "key")
    try:
        own = first_certificate(text)
        valid = validity_of(own)
    except NoCertificate as error:
        swapped = _KEY in text and "CERTIFICATE-----" in key
        what = (
            "contains a private key: are the two settings swapped?" if swapped else f"holds {error}"
        )
        raise _refused(f"{files.certificate} {what}") from None
    if _KEY not in key:
        raise _refused(f"{files.key} contains no PEM private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = LEAST_TLS
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key, password=_passphrase)
    except _PassphraseAskedError:
        told = f"{files.key} has a passphrase, which shoal cannot ask for"
        way_out = f"remove the passphrase: `openssl pkey -in {files.key} -out NEW.pem`"
        raise ConfigError(f"{SETTINGS}: {told}; {way_out}") from None
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or str(error)
        wrong = _WRONG.get(reason, "{certificate} and {key} cannot be used: " + str(error))
        named = {"certificate": files.certificate, "key": files.key}
        raise _refused(wrong.format(**named)) from None
    return TlsPair(context, own, valid)


def exposed_key(files: TlsFiles) -> str | None:
    """Return what is wrong where other users may read the key, else None. The group of a key that
    is not ours was chosen by its owner."""
    try:
        found = Path(files.key).stat()
    except OSError:
        return None
    others = 0o077 if found.st_uid == os.geteuid() else 0o007
    if not stat.S_IMODE(found.st_mode) & others:
        return None
    return f"other users can read the key of http_tls_key, {files.key}"


class PairWatch:
    """A pair, and what became of its files since. `pair` is the last good one; `trouble` says what
    is wrong with what lies there now, "" for nothing."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the pair. Raises ConfigError where it is no good."""
        self._files = files
        self._seen = self._stamps()
        self.pair = read_pair(files)
        self.trouble = ""
        self._unsaid = ""

    def look(self) -> bool:
        """Look at the files again; return whether another pair was taken."""
        seen = self._stamps()
        if seen == self._seen:
            if self._unsaid:
                self.trouble, self._unsaid = self._unsaid, ""
            return False
        try:
            pair = read_pair(self._files)
        except ConfigError as error:
            self._seen, self._unsaid = seen, str(error)
            return False
        if self._stamps() != seen:  # it changes under our hands: the next look has it whole
            return False
        self._seen, self._unsaid, self.trouble = seen, "", ""
        self.pair = pair
        return True

    def _stamps(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(_stamp(path) for path in (self._files.certificate, self._files.key))


def tell_served(folder: str, pair: TlsPair | None, trouble: str) -> None:
    """Write what serves from now on (None: what served before) and what is wrong with the files,
    where this user's processes find it."""
    before = read_served(folder).certificates
    own = () if pair is None else (pair.certificate,)
    certificates = list(dict.fromkeys([*own, *before]))[:SERVED_KEPT]
    text = json.dumps({"certificates": certificates, "trouble": trouble})
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=SERVED_FILE, delete=False) as file:
        file.write(text)
    os.replace(file.name, Path(folder) / SERVED_FILE)


def forget_served(folder: str) -> None:
    """Remove what was told: HTTP is plain now."""
    (Path(folder) / SERVED_FILE).unlink(missing_ok=True)


def read_served(folder: str) -> HttpsServed:
    """Return what the gateway serves with, as it told last; nothing where it told nothing."""
    try:
        told = cast(dict[str, Any], json.loads((Path(folder) / SERVED_FILE).read_text()))
        return HttpsServed(tuple(map(str, told["certificates"])), str(told["trouble"]))
    except (OSError, ValueError, KeyError, TypeError):
        return HttpsServed()


def _read(path: str, what: str) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            data = file.read(FILE_BYTES + 1)
    except FileNotFoundError:
        raise _refused(f"the {what} {path} does not exist") from None
    except OSError as error:
        raise _refused(f"the {what} {path} cannot be read ({error.strerror})") from None
    if len(data) > FILE_BYTES:
        raise _refused(f"the {what} {path} is too large")
    return data.decode("latin-1")


def _refused(what: str) -> ConfigError:
    return ConfigError(f"{SETTINGS}: {what}; {_WAY_OUT}")


def _passphrase() -> NoReturn:
    raise _PassphraseAskedError


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
