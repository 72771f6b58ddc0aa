"""The message bus. Every service imports this package, and it imports no service."""
