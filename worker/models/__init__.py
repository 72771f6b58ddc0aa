"""The models on this node's disk: their cards, layers, files and hashes."""
