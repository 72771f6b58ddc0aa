"""All verbs of `shoal`, by topic: this node, models, disk, cluster, monitor."""
