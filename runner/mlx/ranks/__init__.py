"""One model on several ranks: how the group of ranks forms, and which arrays they exchange in which
order."""
