"""All messages between processes, as frozen types with fixed fields. A tag names the type."""
