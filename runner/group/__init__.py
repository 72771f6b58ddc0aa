"""What the ranks of a group tell each other beside the ring: plans, proofs, beats."""
