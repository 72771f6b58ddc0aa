"""A model as the engine runs it: loaded, looked at, its forward compiled."""
