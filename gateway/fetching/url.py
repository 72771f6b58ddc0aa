"""Parses URLs from strangers. A URL that two programs could read differently is refused.

Pure. The parsed URL is what is checked, resolved, connected to and sent as Host; no other parser
reads the text afterwards. An address is written in its one usual form, and a name in ASCII (IDNA
2008). Credentials, zones and final dots are refused. So is a host that some systems read as a
number.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import quote, urljoin

from gateway.fetching.refusals import FetchRefused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Scheme = Literal["http", "https"]

MOST_CHARACTERS = 4096
USUAL_PORT: dict[str, int] = {"http": 80, "https": 443}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_UNWANTED = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\\\ud800-\udfff]")
"""Control characters, blanks, backslashes (browsers treat them as slashes) and lone surrogates."""
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""The last part of a host name, if some systems would read the whole host as a number because of
it."""
_SENT = "!$&'()*+,;=:@/?%-._~"
"""Characters that stay in a path and a query; all others are written as %XX."""


@dataclass(frozen=True, slots=True)
class FetchUrl:
    """A URL, which may be fetched once its addresses have been checked.

    `host` is in lower case; an IPv6 address has no brackets. `address` is set if the host is an IP
    address. `target` is the path with the query, in ASCII.
    """

    scheme: Scheme
    host: str
    port: int
    target: str
    address: Address | None = None

    @property
    def authority(self) -> str:
        """Return host and port as in a URL or a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == USUAL_PORT[self.scheme] else f"{host}:{self.port}"

    @property
    def text(self) -> str:
        """Return the URL in its usual form."""
        return f"{self.scheme}://{self.authority}{self.target}"


def read_url(text: str) -> FetchUrl:
    """Parse a URL. Raises FetchRefused."""
    _check_characters(text)
    scheme_match = _SCHEME.match(text)
    if scheme_match is None:
        raise FetchRefused("url", "not a full URL: it must begin with http:// or https://")
    scheme = scheme_match[1].lower()
    if scheme not in USUAL_PORT:
        raise FetchRefused(
            "scheme", f"the scheme '{scheme[:40]}' is not supported; use http or https"
        )
    rest = text[scheme_match.end() :]
    if not rest.startswith("//"):
        raise FetchRefused("url", f"the URL must begin with {scheme}://")
    authority, target = _parted(rest[2:])
    if "@" in authority:
        raise FetchRefused("credentials", "a URL with a user name or password (@) is not allowed")
    host, port = _host_and_port(authority, USUAL_PORT[scheme])
    name, address = _read_host(host)
    return FetchUrl(cast(Scheme, scheme), name, port, _sent(target), address)


def read_redirect(base: FetchUrl, location: str) -> FetchUrl:
    """Return the target of a Location header, relative to `base`. Raises FetchRefused."""
    _check_characters(location)
    try:
        joined = urljoin(base.text, location)
    except ValueError as error:
        raise FetchRefused("url", "the redirect has an invalid address") from error
    return read_url(joined)


def _check_characters(text: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise FetchRefused(
            "url", f"the URL is too long; the limit is {MOST_CHARACTERS:,} characters"
        )
    if unwanted := _UNWANTED.search(text):
        raise FetchRefused("url", f"a URL cannot contain {unwanted[0]!r}; write it as %XX")


def _parted(rest: str) -> tuple[str, str]:
    """Return two parts of a URL: the authority, and the path with the query. The fragment is
    dropped."""
    end = min((at for mark in "/?#" if (at := rest.find(mark)) >= 0), default=len(rest))
    authority, target = rest[:end], rest[end:].partition("#")[0]
    return authority, target if target.startswith("/") else f"/{target}"


def _host_and_port(authority: str, usual: int) -> tuple[str, int]:
    host, mark, port = authority, "", ""
    if authority.startswith("["):
        host, bracket, tail = authority.partition("]")
        if not bracket:
            raise FetchRefused("host", "a bracket of an IPv6 address is missing")
        host += bracket
        mark, port = tail[:1], tail[1:]
        if mark not in ("", ":"):
            raise FetchRefused("host", "text follows the brackets of an IPv6 address")
    elif ":" in authority:
        host, mark, port = authority.rpartition(":")
    if not mark:
        return host, usual
    if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
        raise FetchRefused("port", "the port must be a number from 1 to 65535")
    return host, int(port)


def _read_host(text: str) -> tuple[str, Address | None]:
    if text.startswith("["):
        address = _address_v6(text[1:-1])
        return str(address), address
    name = read_name(text)
    labels = name.split(".")
    if not _NUMBER.fullmatch(labels[-1]):
        return name, None
    try:
        address = ipaddress.IPv4Address(name)
    except ValueError:
        raise FetchRefused(
            "host", "an IPv4 address must have four decimal numbers from 0 to 255"
        ) from None
    return name, address


def _address_v6(text: str) -> ipaddress.IPv6Address:
    if not text.isascii() or "%" in text:
        raise FetchRefused("host", "an IPv6 address with a zone is not allowed")
    try:
        return ipaddress.IPv6Address(text)
    except ValueError:
        raise FetchRefused("host", "the text in brackets is not an IPv6 address") from None


def read_name(text: str) -> str:
    """Return a host name in lower case and ASCII. Raises FetchRefused."""
    name = text.lower()
    if not name:
        raise FetchRefused("host", "the URL has no host")
    if name.endswith("."):
        raise FetchRefused("host", "a host cannot end with a dot")
    if "%" in name:
        raise FetchRefused("host", "a host cannot contain %; write its plain name")
    if not name.isascii() or any(label.startswith("xn--") for label in name.split(".")):
        name = _in_ascii(name)
    if len(name) > 253 or not all(map(_LABEL.fullmatch, name.split("."))):
        raise FetchRefused(
            "host",
            (
                "a host name has only letters, digits, - and _ between single dots, at most "
                "253 characters"
            ),
        )
    return name


def _in_ascii(name: str) -> str:
    import idna  # its tables are large, and few names need them

    if re.search(r"[\u3002\uff0e\uff61]", name):
        raise FetchRefused("host", "use plain dots in a host")
    try:
        return idna.encode(name).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        raise FetchRefused("host", "the host is not a valid IDNA 2008 name") from None


def _sent(target: str) -> str:
    return quote(target, safe=_SENT)
