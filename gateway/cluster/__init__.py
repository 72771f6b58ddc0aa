"""The state of the cluster as one HTTP process knows it: readings, counts, other nodes, and the
other HTTP processes of the same gateway.
"""
