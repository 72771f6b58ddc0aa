"""Telemetry: measures this node each second, publishes the results as readings, and takes stacks
and profiles of the node's processes on request."""
