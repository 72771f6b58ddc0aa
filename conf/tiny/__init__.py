"""The files of the bundled tiny model. The scripts in `tests/tiny_model` make them."""
