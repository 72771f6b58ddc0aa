"""Requests from parsing to their end: routing, waiting, answers."""
