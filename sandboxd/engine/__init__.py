"""Engines: what can launch a hardened container, watch it and remove it."""
