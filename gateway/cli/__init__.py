"""The command line: `shoal VERB`, for example `shoal status`. There is one file per topic."""
