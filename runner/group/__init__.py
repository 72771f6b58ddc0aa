"""Messages between the ranks of a group over ZeroMQ: step plans, proofs of identity and heartbeats.

Tensors are not sent by this package: MLX's ring carries them.
"""
