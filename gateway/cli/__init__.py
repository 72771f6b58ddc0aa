"""The command line, `shoal VERB`. One file per topic."""
