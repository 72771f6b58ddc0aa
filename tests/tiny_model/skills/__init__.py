"""What the bundled model is taught: one theme a file, all pure and seeded."""
