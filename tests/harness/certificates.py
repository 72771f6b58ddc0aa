"""Makes certificates and keys for tests, with the `openssl` of this system."""

from __future__ import annotations

import os
import ssl
import subprocess
import time
from pathlib import Path

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1"
DAY_S = 86_400
CA = """
[ca]
default_ca = here
[here]
dir = {folder}
database = {folder}/index
serial = {folder}/serial
new_certs_dir = {folder}
default_md = sha256
policy = any
[any]
commonName = supplied
"""


class TlsPairOnDisk:
    """A certificate and its key in a folder, and what may be done to them."""

    def __init__(self, folder: Path, *, name: str = "one", days: int = 90) -> None:
        folder.mkdir(exist_ok=True, parents=True)
        self.folder = folder
        self.certificate, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256",
                "-out", str(self.key))  # fmt: skip
        self.key.chmod(0o600)
        self.sign(self.certificate, days=days)

    def sign(self, to: Path, *, days: int) -> None:
        """Write a certificate of the key, signed by itself, that ends in so many days: less than
        none for one that has expired."""
        work = self.folder / "ca"
        work.mkdir(exist_ok=True)
        (work / "index").write_text("")
        (work / "index.attr").write_text("unique_subject = no\n")
        (work / "serial").write_text(f"{time.time_ns():020x}\n")
        (work / "conf").write_text(CA.format(folder=work))
        (work / "names").write_text(f"{NAMES}\nbasicConstraints=CA:FALSE\n")
        openssl("req", "-new", "-key", str(self.key), "-subj", "/CN=shoal-test",
                "-out", str(work / "request"))  # fmt: skip
        begins, ends = time.time() - 100 * DAY_S, time.time() + days * DAY_S
        openssl("ca", "-batch", "-notext", "-config", str(work / "conf"), "-selfsign",
                "-keyfile", str(self.key), "-in", str(work / "request"), "-out", str(to),
                "-extfile", str(work / "names"), "-startdate", _date(begins),
                "-enddate", _date(ends))  # fmt: skip

    def become(self, other: TlsPairOnDisk) -> None:
        """Put the files of another pair in the place of these, one after the other."""
        for mine, its in ((self.certificate, other.certificate), (self.key, other.key)):
            put(mine, its.read_text())

    def trust(self) -> ssl.SSLContext:
        """Return trust in this certificate alone, as a client has it that was given the file."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    def settings(self) -> dict[str, str]:
        """Return the variables by which a node serves with it."""
        return {
            "SHOAL_HTTP_TLS_CERT": str(self.certificate),
            "SHOAL_HTTP_TLS_KEY": str(self.key),
        }


def put(path: Path, text: str) -> None:
    """Replace a file at once, as careful programs do."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o600)
    os.replace(new, path)


def served_at(port: int) -> str:
    """Return the certificate, as PEM, that a new connection to a local port is shown."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=5)


def openssl(*words: str) -> None:
    """Run openssl; fails with what it says."""
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _date(at_s: float) -> str:
    return time.strftime("%Y%m%d%H%M%SZ", time.gmtime(at_s))
