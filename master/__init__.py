"""The master: a candidate for leader. While it leads, it decides for the cluster."""
