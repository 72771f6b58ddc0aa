"""Data that crosses a wire: ids, errors, messages, topics, and their bytes.

Pure: frozen, closed types and their codecs; no socket, no clock, no file. Also rules that both ends
must share: how places are divided, and how the files of an embedding model and a client's template
are read. It imports no other room.
"""
