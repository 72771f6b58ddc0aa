"""Where a model goes: memory, speed, the search over nodes, and why not.

Pure arithmetic, polynomial in the number of nodes. Knows cards, nodes and links, no command.
"""
