"""The models on this node's disk: their model cards, layers, files and hashes."""
