"""Messages between the ranks of a group beside the ring: plans, proofs, beats."""
