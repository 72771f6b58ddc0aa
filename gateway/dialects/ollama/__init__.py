"""Ollama's API: bodies, parsers, rendering."""
