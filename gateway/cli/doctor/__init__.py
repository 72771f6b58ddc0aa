"""The checks of `shoal doctor`, and the meaning and remedy of each finding."""
