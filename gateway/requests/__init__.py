"""Chooses a model's instance for each request to one HTTP process, or queues the request until an
instance is ready. Also follows each request from the parsed body to the end of its answer."""
