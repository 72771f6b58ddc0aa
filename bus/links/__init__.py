"""Sockets, their keys, and the loops that wait on them; the only home of ZeroMQ.

A link never blocks; its return value says if a message cannot be sent. Knows no message by name.
"""
