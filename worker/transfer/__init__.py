"""Weights between nodes: fetching, serving, checking and staging them in pieces."""
