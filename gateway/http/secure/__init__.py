"""Talks to clients before HTTP: the pair of HTTPS, and the door that each connection comes through.

A connection counts from its first byte on. What is no TLS is told so, in plain HTTP.
"""

from gateway.http.secure.door import Door
from gateway.http.secure.served import ServedPair

__all__ = ["Door", "ServedPair"]
