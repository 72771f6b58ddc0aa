"""The roles that a runner can have: lead, follower, embedding, quantising, collective test."""
