"""Telemetry: the process that measures this node, publishes the readings, and records stacks and
profiles of other processes."""
