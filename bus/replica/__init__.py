"""The cluster's log, as each process receives it: the state, the mirror that applies events, and
the outbox of facts that are not in the log yet.

Pure: time arrives as `now`. Only the master stores the log on disk.
"""
