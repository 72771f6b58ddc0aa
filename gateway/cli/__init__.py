"""The command line: `shoal VERB`, for example `shoal status`. The room `verbs` has the verbs."""
