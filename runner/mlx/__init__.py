"""The MLX engine: all code that handles arrays. Other packages use its `engine` and `embedding`."""
