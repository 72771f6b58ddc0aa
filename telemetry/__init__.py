"""Telemetry: measures this node, publishes readings, takes diagnostics."""
