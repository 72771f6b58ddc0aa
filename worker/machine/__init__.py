"""What this node is: its card, memory, RDMA devices, addresses and ports."""
