"""Consolidation in the daemon: `background` runs it, `settings` says how, `failures` what is answered when it fails."""
