"""What a runner may be: lead, follower, one that makes embeddings, or tests its group's links."""
