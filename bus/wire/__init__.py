"""What may cross a wire: ids, errors, messages, topics, and the bytes of each.

Pure: frozen, closed types and their codecs, and by what rule both ends share places among those
who ask; no socket, no clock, no file. It imports no other room.
"""
