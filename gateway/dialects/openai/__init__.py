"""OpenAI's APIs: bodies of requests, parsers, rendering of answers."""
