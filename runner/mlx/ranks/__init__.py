"""One model on several ranks: forming the group, and the content and order of its exchanges."""
