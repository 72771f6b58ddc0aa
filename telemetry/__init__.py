"""Telemetry: measures this node, publishes the readings, and takes stacks and profiles."""
