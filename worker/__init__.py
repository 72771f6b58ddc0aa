"""The worker: makes each node's runners and weights match the cluster's state."""
