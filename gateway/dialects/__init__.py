"""The HTTP APIs of shoal: each API (dialect) has one pure file or folder, which parses the bodies
of requests and renders answers.
"""
