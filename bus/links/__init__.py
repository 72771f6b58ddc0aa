"""Sockets, their keys, and the loops that wait on them; the only home of ZeroMQ.

A link never blocks; what cannot be sent is said by the return value. Knows no message by name.
"""
