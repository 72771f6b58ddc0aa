"""Anthropic's API for text: messages."""
