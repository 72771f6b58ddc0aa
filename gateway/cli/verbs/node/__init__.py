"""Verbs about this node: up, down, restart, status, logs, tap, capture, config, service, lab,
version."""
