"""The master: a candidate for leader on each node. The leader decides for the cluster."""
