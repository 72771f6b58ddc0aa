"""This node's runner slots: what each one is, what it should be, and what to do about it.

Deciding is pure (`reconcile`); `executor` acts.
"""
