"""The basics of each process on its machine: clocks, logs, ids, memory, endpoints,
supervisord, and the installed code.

This package uses no ZeroMQ and knows nothing about other nodes.
"""
