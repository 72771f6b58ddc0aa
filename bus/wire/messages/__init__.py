"""Everything that may cross a wire, as frozen, tagged, closed types."""
