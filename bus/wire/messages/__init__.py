"""Every message that can cross a wire, as frozen types with fixed fields, told apart by a tag."""
