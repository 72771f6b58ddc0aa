"""OpenAI's chat completions and completions: fields, bodies, rendering."""
