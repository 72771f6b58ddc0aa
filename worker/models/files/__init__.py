"""What the files of one model's folder say, each read within bounds: headers of safetensors, the
configuration, `card.toml`, and where the folder came from. Nothing here looks for models, and
nothing keeps what it read.
"""
