"""Talks to the disk: the certificate and key of HTTPS; reads, checks and watches them.

A certificate and its key are a pair, which is accepted or refused as a whole. A refusal names both
settings and the remedy. The current pair is used until a new pair has been read and is valid. The
new pair is a new TLS context, which only new connections use. While files are being replaced,
certificate and key may not match for a moment, so a fault is reported only if two checks find it.
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
"""How messages name the two settings."""
LEAST_TLS = ssl.TLSVersion.TLSv1_2
FILE_BYTES = 1 << 20
SERVED_FILE = "http-tls.json"
"""File in the runtime folder with the gateway's certificates, for this user's other processes."""
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
    """Full paths of a certificate (with its chain after it) and its key."""

    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class TlsPair:
    """A valid certificate with its key. `certificate` is the certificate as PEM, without its
    chain."""

    context: ssl.SSLContext
    certificate: str
    valid: Validity


@dataclass(frozen=True, slots=True)
class HttpsServed:
    """The certificates with which the gateway serves now or served until just now, as PEM, newest
    first. `trouble`: the fault of the files; "" if none."""

    certificates: tuple[str, ...] = ()
    trouble: str = ""


class _PassphraseAskedError(Exception):
    """The key is encrypted with a passphrase, which shoal does not support."""


def read_pair(files: TlsFiles) -> TlsPair:
    """Return the certificate and key, ready to serve HTTPS. Raises ConfigError with the fault."""
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
        fault = f"{files.key} has a passphrase, which shoal cannot ask for"
        way_out = f"remove the passphrase: `openssl pkey -in {files.key} -out NEW.pem`"
        raise ConfigError(f"{SETTINGS}: {fault}; {way_out}") from None
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or str(error)
        wrong = _WRONG.get(reason, "{certificate} and {key} cannot be used: " + str(error))
        named = {"certificate": files.certificate, "key": files.key}
        raise _refused(wrong.format(**named)) from None
    return TlsPair(context, own, valid)


def exposed_key(files: TlsFiles) -> str | None:
    """Return a warning if other users may read the key file, else None. If another user owns the
    file, that user chose its group, so access by the group is no fault."""
    try:
        status = Path(files.key).stat()
    except OSError:
        return None
    others = 0o077 if status.st_uid == os.geteuid() else 0o007
    if not stat.S_IMODE(status.st_mode) & others:
        return None
    return f"other users can read the key of http_tls_key, {files.key}"


class PairWatch:
    """Watches the files of a certificate and its key. `pair` is the last valid pair; `trouble` is
    the fault of the current files, or ""."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the certificate and the key. Raises ConfigError if they are invalid."""
        self._files = files
        self._seen = self._stamps()
        self.pair = read_pair(files)
        self.trouble = ""
        self._pending = ""

    def look(self) -> bool:
        """Check the files again; return whether a new pair is in use."""
        seen = self._stamps()
        if seen == self._seen:
            if self._pending:
                self.trouble, self._pending = self._pending, ""
            return False
        try:
            pair = read_pair(self._files)
        except ConfigError as error:
            self._seen, self._pending = seen, str(error)
            return False
        if self._stamps() != seen:  # the files are changing: wait for the next look
            return False
        self._seen, self._pending, self.trouble = seen, "", ""
        self.pair = pair
        return True

    def _stamps(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(_stamp(path) for path in (self._files.certificate, self._files.key))


def tell_served(folder: str, pair: TlsPair | None, trouble: str) -> None:
    """Write the gateway's current certificate, and the fault of its files, where this user's other
    processes can read them. `pair` None: the gateway still serves with the previous pair."""
    before = read_served(folder).certificates
    own = () if pair is None else (pair.certificate,)
    certificates = list(dict.fromkeys([*own, *before]))[:SERVED_KEPT]
    text = json.dumps({"certificates": certificates, "trouble": trouble})
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=SERVED_FILE, delete=False) as file:
        file.write(text)
    os.replace(file.name, Path(folder) / SERVED_FILE)


def forget_served(folder: str) -> None:
    """Delete the file that `tell_served` wrote. Call this when the node serves HTTP without TLS, so
    that no outdated certificates are reported."""
    (Path(folder) / SERVED_FILE).unlink(missing_ok=True)


def read_served(folder: str) -> HttpsServed:
    """Return the certificates that the gateway last wrote with `tell_served`; empty if it wrote
    none."""
    try:
        content = cast(dict[str, Any], json.loads((Path(folder) / SERVED_FILE).read_text()))
        return HttpsServed(tuple(map(str, content["certificates"])), str(content["trouble"]))
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
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
