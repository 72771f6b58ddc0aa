"""The MLX engine: all code that handles arrays. Other rooms import `engine` and `embedding`."""
