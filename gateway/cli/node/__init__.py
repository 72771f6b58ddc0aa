"""The command line's access to a node: its API, state, processes and files. It has no verbs."""
