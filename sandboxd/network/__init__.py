"""Egress: what sandboxes reach through the daemon, which decides, connects, adds credentials and keeps a record."""
