"""`shoal doctor`: its checks, and the meaning and remedy of each finding."""
