"""The master candidate: decides for the cluster while it holds the term."""
