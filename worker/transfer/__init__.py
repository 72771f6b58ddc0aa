"""Copies weights between nodes, in pieces: fetches, serves, checks and stages them."""
