"""A node as the command line sees it: API, state, processes and files. Contains no verbs."""
