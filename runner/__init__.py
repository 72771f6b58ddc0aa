"""The runner: one rank of one instance; the only process that imports MLX."""
