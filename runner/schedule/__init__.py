"""Which rows run next: the `Scheduler`, and what it decides with.

Pure: time arrives as `now`. Knows tokens and bytes, never an array.
"""
