"""The runner slots of this node: their actual state, their desired state, and the actions that make
them equal.

`reconcile` is pure and decides the actions; `executor` carries them out.
"""
