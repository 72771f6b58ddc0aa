"""Cables, RDMA ports, links and graphics cards, as read from the output of tools, from measurements
and from Linux's `/sys`.

Pure but for `graphics_cards` and `sysfs`, which read files below a root that the caller names.
"""
