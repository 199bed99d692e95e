"""The daemon that gives every AI agent a hardened container and its memory as plain files."""
