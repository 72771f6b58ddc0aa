"""Weights between nodes: getting, giving, checking and staging them, piece by piece."""
