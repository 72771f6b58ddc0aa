"""The MLX engine: everything that touches an array. Its public faces: `engine`, `embedding`."""
