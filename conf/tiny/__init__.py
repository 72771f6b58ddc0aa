"""The bundled tiny model: its files. `tests/tiny_model` has the scripts that make them."""
