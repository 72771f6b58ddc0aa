"""All data that crosses a wire: ids, errors, messages and topics, with their encoding as bytes.

Pure: frozen, closed types and their codecs. This room uses no socket, clock or file, and imports no
other room. It also holds rules that sender and receiver must share, such as how queue places are
divided.
"""
