"""ZeroMQ sockets, their encryption keys, and the loops that wait for messages.

No other package imports ZeroMQ. A link (one socket) never blocks: the return value of a send says
whether the message was sent. This package does not know the types of messages.
"""
