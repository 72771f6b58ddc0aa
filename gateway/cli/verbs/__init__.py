"""Every verb of `shoal`, by what it is about: this node, models, the cluster."""
