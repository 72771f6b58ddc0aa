"""Connections to lead runners: one DEALER socket each, with credit and liveness."""
