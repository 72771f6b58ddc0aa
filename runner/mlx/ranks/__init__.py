"""One model on several ranks: how the group forms, and the content and order of its exchanges."""
