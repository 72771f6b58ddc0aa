"""A model as the engine runs it: loading, capabilities, compiled forward, CPU cores."""
