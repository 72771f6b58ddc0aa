"""The runner slots of this node: their actual state, their desired state, and the actions that make
them equal.

`reconcile` decides and is pure; `executor` acts.
"""
