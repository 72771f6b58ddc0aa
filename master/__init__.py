"""The master process: each node has one as a candidate for leader. While it leads, it decides for
the cluster.
"""
