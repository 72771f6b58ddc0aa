"""The MLX engine: all code that handles arrays. Its entry points: `engine`, `embedding`."""
