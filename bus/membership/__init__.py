"""The cluster's members, as one node's switchboard sees them, and how it finds them.

Decisions are pure (`membership`); `peer_links`, `peer_memory` and `discovery` act.
"""
