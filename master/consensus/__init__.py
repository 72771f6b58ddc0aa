"""Who holds the term, and the one copy of the log that counts.

Pure but for the shell, the term file and the links between candidates: a stimulus goes in, actions
to be carried out in their order come out.
"""
