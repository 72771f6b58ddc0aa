"""The message bus: the shared kernel that every service imports and that imports no service."""
