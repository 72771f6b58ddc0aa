"""Every message that can cross a wire, as frozen, tagged and closed types."""
