"""Connections to lead runners. Each has a DEALER socket, gives the runner credit for the entries
that it may send, and checks that the runner is alive.
"""
