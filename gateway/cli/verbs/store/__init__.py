"""Verbs about models on disk: download, copy, verify, name, delete; cards and storage."""
