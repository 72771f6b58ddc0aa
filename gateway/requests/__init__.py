"""Requests from parsed to their last word: routed, waiting, answered."""
