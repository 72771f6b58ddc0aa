"""Cables, ports and measured links, read from what tools and readings say.

Pure: whoever runs the tools gives their output.
"""
