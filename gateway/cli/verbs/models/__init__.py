"""Verbs about models: run, chat, ls, show, ps, load, stop, place, requests, jobs, trace, bench."""
