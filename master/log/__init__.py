"""The log on disk and in order: journal, archives, recent events, indices, acknowledgements.

`journal` and `archives` talk to the disk; the rest is pure. Knows nothing of elections.
"""
