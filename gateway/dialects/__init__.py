"""The HTTP APIs of shoal, one pure file or folder each: parse a body, render an answer."""
