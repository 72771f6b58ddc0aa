"""Every HTTP API that shoal speaks, one pure file each: parse in, render out."""
