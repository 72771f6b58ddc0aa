"""What the holder makes of commands and readings: events, as data.

Pure: time arrives as `now`.
"""
