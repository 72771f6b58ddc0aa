"""Talks to other gateways and to this gateway's other HTTP processes: questions that one process
asks, and their answers.
"""
