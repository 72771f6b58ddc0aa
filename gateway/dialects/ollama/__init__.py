"""Ollama's chat and generate: fields, bodies, rendering."""
