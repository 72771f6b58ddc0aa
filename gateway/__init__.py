"""The gateway: HTTP in every dialect, and the command line."""
