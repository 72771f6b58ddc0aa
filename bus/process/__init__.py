"""The basics of each process on its machine: clocks, logs, ids, memory, endpoints, supervisord.

This room uses no ZeroMQ and knows nothing about other nodes.
"""
