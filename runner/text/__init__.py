"""Text and tokens: templates, tokenising, grammars; stops, spans and choices on the way out.

Pure, but for the thread that does it beside the engine.
"""
