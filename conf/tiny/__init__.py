"""The bundled tiny model: its files, and (in `make`) the scripts that made them."""
