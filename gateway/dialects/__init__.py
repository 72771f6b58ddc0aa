"""The HTTP APIs of shoal. Each dialect has one pure file or folder, which parses the bodies of
requests and renders answers.
"""
