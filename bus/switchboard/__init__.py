"""The node's switchboard: both planes forwarded, retained values kept, taps served."""
