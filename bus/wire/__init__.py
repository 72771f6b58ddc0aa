"""What may cross a wire: ids, errors, messages, topics, and the bytes of each.

Pure: frozen, closed types and their codecs, by what rule both ends share places among those who
ask, and by what rules they read the files of an embedding model and a client's template; no socket,
no clock, no file. It imports no other room.
"""
