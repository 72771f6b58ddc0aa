"""Serve gateway requests at a lead runner, from submit to the single end."""
