"""Sandboxes: their life cycle, the manager that owns them, the registry and the warm pool."""
