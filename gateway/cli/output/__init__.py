"""What every verb says: words and tables on the terminal, log lines, errors and exit codes."""
