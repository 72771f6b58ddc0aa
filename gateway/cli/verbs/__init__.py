"""All verbs (commands) of `shoal`, by topic: this node, models, disk, engines, cluster, monitor."""
