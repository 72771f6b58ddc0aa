"""Copies weights and KV between nodes, in pieces: fetches, serves, checks and stages them."""
