"""What a runner may be: lead, follower, or one that tests its group's collectives."""
