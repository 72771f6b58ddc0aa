"""This node's runner slots: their actual state, their desired state, and the actions between them.

Deciding is pure (`reconcile`); `executor` acts.
"""
