"""Verbs about models: run, chat, ls, ps, load, stop, place, bench."""
