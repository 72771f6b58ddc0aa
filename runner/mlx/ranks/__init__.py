"""One model on several ranks: how the ranks join MLX's group, which part of the model each rank
computes, and which arrays they exchange in which order."""
