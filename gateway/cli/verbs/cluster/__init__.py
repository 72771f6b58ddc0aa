"""Verbs about the cluster: nodes, cluster-info, verify, rdma-test, hostfile, keys, apikey, pool,
lease, clients, tasks."""
