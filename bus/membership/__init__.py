"""The members of the cluster as one node's switchboard sees them, and how it finds and dials nodes.

Module `membership` decides and is pure. `peer_links` dials nodes, `peer_memory` stores their
addresses, and `discovery` finds nodes by mDNS. Module `card_book` is the one merge of node cards.
`card_exchange` passes cards on to nodes that cannot dial each other.
"""
