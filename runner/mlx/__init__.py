"""The MLX engine: all code that computes with MLX arrays. Only the composition root of the runner
imports it."""
