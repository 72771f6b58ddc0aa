"""The basics of each process on its machine: clocks, logs, ids, memory, endpoints, supervisord.

This package uses no ZeroMQ and knows nothing about other nodes.
"""
