"""Sockets, their keys, and the loops that wait on them; the only home of ZeroMQ.

A link never blocks; its return value says whether a message could be sent. This room knows no
message by name.
"""
