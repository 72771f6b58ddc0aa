"""Talks to clients before HTTP begins: loads the TLS certificate, and does the TLS handshake of
each connection.

A connection counts towards the limit of connections from the moment when it is accepted. A client
that sends plain HTTP to the TLS port gets an error in plain HTTP.
"""

from gateway.http.secure.door import Door
from gateway.http.secure.served import ServedPair

__all__ = ["Door", "ServedPair"]
