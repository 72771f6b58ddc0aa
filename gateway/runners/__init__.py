"""Connections to lead runners. Each connection has a DEALER socket, grants the runner credit for
entries, and checks that the runner is alive.
"""
