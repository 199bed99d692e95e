"""Sandboxes: the life cycle, the manager, the registry and the warm pool."""
