"""A process and its machine: clocks, logs, ids, memory, endpoints, supervisord.

No ZeroMQ, and nothing about other nodes.
"""
