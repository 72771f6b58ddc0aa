"""Who is in the cluster, as one node's switchboard sees it, and how it gets to know.

Deciding is pure (`membership`); `peer_links`, `peer_memory` and `discovery` act.
"""
