"""A lead runner's side of requests: it accepts a request from a gateway, sends the answer, and ends
the request exactly once.
"""
