"""All data that crosses a wire: ids, errors, messages and topics, with their encoding as bytes.

Pure: frozen types with fixed fields, and their codecs. This package uses no socket, clock or file,
and imports no other package of shoal. It also holds rules that sender and receiver must share, such
as how the places in a queue are divided.
"""
