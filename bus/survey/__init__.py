"""How good the links between nodes are: when to measure, what to send, what came out."""
