"""Verbs about the models on disks: got, verified and deleted."""
