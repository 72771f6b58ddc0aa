"""Facts about this machine: its node card, memory, RDMA devices, addresses and ports."""
