"""Cables, ports and measured links, read from the output of tools and from readings.

Pure: the caller runs the tools and passes their output.
"""
