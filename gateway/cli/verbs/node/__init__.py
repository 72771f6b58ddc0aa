"""Verbs about this node: up, down, status, logs, tap, config, service, lab."""
