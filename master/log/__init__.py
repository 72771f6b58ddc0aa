"""The log on disk and in order: journal, archives, recent events, indices, acknowledgements.

`journal`, `archives` and `files` talk to the disk; the rest is pure. Knows nothing of elections.
"""
