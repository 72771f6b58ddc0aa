"""A model as the engine runs it: loaded, looked at, its forward compiled, on so many cores."""
