"""Cables, RDMA ports and links between nodes: what the output of tools and the measurements say.

Pure: the caller runs the tools and passes their output.
"""
