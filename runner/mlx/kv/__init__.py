"""The KV of rows: by itself, in padded batches, in slabs, kept as prefixes."""
