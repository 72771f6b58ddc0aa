"""The worker: the process on each node that starts and stops runners, and fetches weights, as the
cluster's state requires."""
