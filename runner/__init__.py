"""The runner: one rank of one instance. Only runners import MLX."""
