"""Facts about this machine: its card, memory, RDMA devices, addresses and ports."""
