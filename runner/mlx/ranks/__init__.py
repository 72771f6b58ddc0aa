"""One model over several ranks: forming the group, what its ranks exchange, and when."""
