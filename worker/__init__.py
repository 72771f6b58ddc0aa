"""The worker: makes this node match the cluster state."""
