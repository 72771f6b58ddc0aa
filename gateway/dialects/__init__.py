"""The HTTP APIs of shoal. Each API (dialect) has one pure file or folder, which parses the bodies
of requests and renders answers.
"""
