"""Talks to clients before HTTP: the TLS certificate, and the handshake of each connection.

A connection counts from its first byte on. A plain HTTP client gets an error in plain HTTP.
"""

from gateway.http.secure.door import Door
from gateway.http.secure.served import ServedPair

__all__ = ["Door", "ServedPair"]
