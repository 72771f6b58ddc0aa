"""What an operator types: `shoal VERB`. One file a theme."""
