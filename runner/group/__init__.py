"""Messages between the ranks of a group over ZeroMQ: step plans, proofs of identity and heartbeats.
Tensors do not pass here, but over MLX's ring.
"""
