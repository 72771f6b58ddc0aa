"""All verbs (commands) of `shoal`, by topic: this node, models, disk, cluster, monitor."""
