"""OpenAI's APIs: bodies, parsers, rendering."""
