"""The members of the cluster as one node's switchboard sees them, and how it finds and dials nodes.

Module `membership` decides and is pure. `peer_links` dials nodes, `peer_memory` stores their
addresses, and `discovery` finds nodes by mDNS. `card_book` is the one merge of node cards; all who
keep cards use it.
"""
