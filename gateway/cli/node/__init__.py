"""The command line's access to a node: the node's API, state, processes and files. It has no verbs."""
