"""The cluster's log as a follower sees it: state, mirror, outbox.

Pure: time arrives as `now`. The log on disk belongs to the master.
"""
