"""The cluster's log as a follower sees it: state, mirror, outbox.

Pure: time arrives as `now`. What happens to the log on disk is the master's.
"""
