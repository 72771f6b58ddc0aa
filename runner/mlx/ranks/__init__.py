"""One model on several ranks: how the group is formed, and what the ranks exchange in which order."""
