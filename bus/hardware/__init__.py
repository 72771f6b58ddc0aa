"""Cables, RDMA ports, links and graphics cards: what the output of tools, the measurements and the
files of Linux's `/sys` say.

Pure but for `graphics_cards` and `sysfs`, which read files below a root that the caller names.
"""
