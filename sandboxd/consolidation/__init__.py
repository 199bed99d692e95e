"""Consolidation in the daemon: the background service, its settings, and the errors of a failed run."""
