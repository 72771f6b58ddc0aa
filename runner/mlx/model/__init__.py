"""A model as the engine runs it: loading, trials of what it can do, its compiled forward pass, and
the CPU cores that it may use.
"""
