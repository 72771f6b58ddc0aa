"""Ollama's API: bodies of requests, parsers, rendering of answers."""
