"""Verbs about the cluster: nodes, keys, cluster-info, hostfile, rdma-test."""
