"""The gateway's HTTP resources, one family a file."""
