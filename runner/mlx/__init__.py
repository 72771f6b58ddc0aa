"""The MLX engine: everything that touches an array. Its one public face is `engine`."""
