"""The log of events: the journal and its archives on disk, recent events, indices,
acknowledgements.

`journal`, `archives` and `files` talk to the disk; all other modules are pure. This package knows
nothing of elections.
"""
