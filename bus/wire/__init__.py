"""What may cross a wire: ids, errors, messages, topics, and the bytes of each.

Pure: frozen, closed types and their codecs; no socket, no clock, no file. It imports no other room.
"""
