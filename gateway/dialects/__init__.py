"""The HTTP APIs of shoal: for each dialect one pure file or folder, which parses the bodies of
requests and renders answers.
"""
