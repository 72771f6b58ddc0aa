"""A node as the command line sees it: its API, state, processes and files; no verb in it."""
