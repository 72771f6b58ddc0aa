"""A model as the engine runs it: how it is loaded, what it can do, its compiled forward, and its
CPU cores.
"""
