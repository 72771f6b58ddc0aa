"""The gateway: the HTTP server for all API dialects, and the command line."""
