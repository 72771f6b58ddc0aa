"""What a process is to its machine: clocks, logs, ids, memory, endpoints, supervisord.

No ZeroMQ, and nothing of other nodes.
"""
