"""ZeroMQ sockets, their encryption keys, and the loops that wait for messages.

No other room imports ZeroMQ. A link never blocks: its return value says whether the message was
sent. This room does not know the types of messages.
"""
