"""The output of all verbs: messages, tables, log lines, errors and exit codes."""
