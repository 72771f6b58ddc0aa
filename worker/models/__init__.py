"""What lies on this node's disk: models, their cards, layers, files and hashes."""
