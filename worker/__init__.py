"""The worker: makes this node match the state of the cluster."""
