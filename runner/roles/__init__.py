"""The tasks of a runner: lead, follower, embedding, quantising, collective test."""
