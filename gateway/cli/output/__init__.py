"""What every verb shares: options, words on the terminal, errors and exit codes."""
