"""`shoal doctor`: what it looks at, and what each finding means."""
