"""Connections to lead runners, each with a DEALER socket, credit for entries that the runner can
send, and a check that the runner is alive.
"""
