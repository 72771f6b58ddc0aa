"""The cluster as one HTTP process sees it: readings, counts, other nodes and sibling processes."""
