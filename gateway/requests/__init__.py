"""Model requests in one HTTP process, from the parsed body to the end: routing, waiting, and
answers.
"""
