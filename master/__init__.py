"""The master candidate: decides for the cluster while it is the leader."""
