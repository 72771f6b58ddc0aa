"""Talks to the disk: the TLS certificates that the command line trusts.

For this home's own node, it trusts exactly the certificates on the node's disk; their names and
dates are not checked. For another address, it trusts the certificates of `--ca`, else those of this
system (SSL_CERT_FILE, SSL_CERT_DIR); names and dates must be valid.
"""

from __future__ import annotations

import contextlib
import os
import ssl

import certifi

from bus.links.certificates import NoCertificate, first_certificate, standing
from bus.links.tls_files import LEAST_TLS, exposed_key, read_pair, read_served
from bus.process.clock import wall
from conf.settings import Settings
from gateway.cli.output.errors import USAGE, CliError

SYSTEM_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, for which Python has no name."""


def own_trust(settings: Settings) -> ssl.SSLContext | None:
    """Return a TLS context that trusts the certificates of this home's node; None if the node
    serves plain HTTP. Never raises: without a readable certificate the context trusts nothing."""
    if settings.tls is None:
        return None
    certificates = list(read_served(settings.endpoints.folder).certificates)
    with contextlib.suppress(OSError, NoCertificate), open(settings.tls.certificate) as file:
        certificates.append(first_certificate(file.read()))
    context = _context()
    context.check_hostname = False
    context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
    for certificate in certificates:
        with contextlib.suppress(ssl.SSLError):
            context.load_verify_locations(cadata=certificate)
    return context


def trust(authorities: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates of the PEM file `authorities`, else those
    of this system. Raises CliError."""
    context = _context()
    if authorities is not None:
        try:
            context.load_verify_locations(cafile=authorities)
        except (OSError, ssl.SSLError) as error:
            text = f"cannot read --ca {authorities}: {error.strerror or error}"
            raise CliError(text, remedy="use a file of PEM certificates", code=USAGE) from error
        return context
    context.load_default_certs()
    if not any(os.environ.get(name) for name in SYSTEM_VARIABLES):
        context.load_verify_locations(cafile=certifi.where())
    return context


def pair_notes(settings: Settings) -> list[str]:
    """Return remarks on the certificate and key of this home's node. Raises ConfigError if the node
    cannot serve with them."""
    files = settings.tls
    if files is None:
        return []
    pair, exposed = read_pair(files), exposed_key(files)
    notes = [] if exposed is None else [f"{exposed}; run `chmod 600 {files.key}`"]
    ending = standing(pair.valid, wall())
    return [*notes, f"the certificate of http_tls_cert {ending}"] if ending else notes


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = LEAST_TLS
    # a certificate that is trusted itself needs no trusted issuer
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
