"""The MLX engine: all code that computes with MLX arrays. Other packages import only `engine`, for
language models, and `embedding`."""
