"""Cables, ports and measured links, read from what tools and readings say.

Pure: the caller runs the tools and gives their output.
"""
