"""What the ranks of a group send each other beside the ring: plans, proofs, beats."""
