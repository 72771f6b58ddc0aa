"""What one HTTP process knows and tells beside requests: readings, counts, its siblings."""
